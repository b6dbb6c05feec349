/* cuBLAS and cuBLASLt: count matrix products, their operations and bytes, without computing them. */
#include <stdlib.h>
#include <string.h>

typedef unsigned long size;
extern void null_gpu_product(double rows, double columns, double inner, double times, double itemsize, void *stream);
struct handle { void *stream; };
struct layout { size rows, columns; int times, type; };
struct product { int transposed[2]; };

int cublasCreate_v2(struct handle **h) { *h = calloc(1, sizeof **h); return 0; }
int cublasDestroy_v2(struct handle *h) { return 0; }
int cublasSetStream_v2(struct handle *h, void *s) { h->stream = s; return 0; }
int cublasSetWorkspace_v2(void *h, void *w, size n) { return 0; }
int cublasSetMathMode(void *h, int m) { return 0; }
int cublasGetMathMode(void *h, int *m) { *m = 0; return 0; }
int cublasSetPointerMode_v2(void *h, int m) { return 0; }
int cublasGetPointerMode_v2(void *h, int *m) { *m = 0; return 0; }
int cublasSetEmulationStrategy(void *h, int m) { return 0; }
int cublasGetEmulationStrategy(void *h, int *m) { *m = 0; return 0; }
static int product(struct handle *h, int m, int n, int k, int times, int itemsize) {
  null_gpu_product(m, n, k, times, itemsize, h->stream);
  return 0;
}
static int itemsize(int type) { return type == 0 ? 4 : type == 1 ? 8 : 2; } /* float, double; half and bfloat16 */
int cublasGemmEx(struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int type) {
  return product(h, m, n, k, 1, itemsize(type));
}
int cublasSgemm_v2(struct handle *h, int ta, int tb, int m, int n, int k) { return product(h, m, n, k, 1, 4); }
int cublasDgemm_v2(struct handle *h, int ta, int tb, int m, int n, int k) { return product(h, m, n, k, 1, 8); }
int cublasSgemv_v2(struct handle *h, int ta, int m, int n) { return product(h, m, 1, n, 1, 4); }
int cublasDgemv_v2(struct handle *h, int ta, int m, int n) { return product(h, m, 1, n, 1, 8); }
int cublasSdot_v2(struct handle *h, int n) { return product(h, 1, 1, n, 1, 4); }
int cublasDdot_v2(struct handle *h, int n) { return product(h, 1, 1, n, 1, 8); }
int cublasDotEx(struct handle *h, int n) { return product(h, 1, 1, n, 1, 2); }
int cublasGemmStridedBatchedEx(
    struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int type, int lda,
    long long sa, const void *b, int tyb, int ldb, long long sb, const void *beta, void *c, int tc, int ldc,
    long long sc, int times) {
  return product(h, m, n, k, times, itemsize(type));
}
int cublasSgemmStridedBatched(
    struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, long long sa,
    const void *b, int ldb, long long sb, const void *beta, void *c, int ldc, long long sc, int times) {
  return product(h, m, n, k, times, 4);
}
int cublasDgemmStridedBatched(
    struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, long long sa,
    const void *b, int ldb, long long sb, const void *beta, void *c, int ldc, long long sc, int times) {
  return product(h, m, n, k, times, 8);
}

int cublasLtCreate(void **h) { *h = (void *)64; return 0; }
int cublasLtDestroy(void *h) { return 0; }
int cublasLtMatmulDescCreate(struct product **d) { *d = calloc(1, sizeof **d); return 0; }
int cublasLtMatmulDescDestroy(struct product *d) { free(d); return 0; }
int cublasLtMatmulDescSetAttribute(struct product *d, int attribute, const int *value) {
  if (attribute == 3 || attribute == 4) d->transposed[attribute - 3] = *value;
  return 0;
}
int cublasLtMatrixLayoutCreate(struct layout **l, int type, size rows, size columns) {
  *l = malloc(sizeof **l);
  **l = (struct layout){rows, columns, 1, type};
  return 0;
}
int cublasLtMatrixLayoutDestroy(struct layout *l) { free(l); return 0; }
int cublasLtMatrixLayoutSetAttribute(struct layout *l, int attribute, const int *value) {
  if (attribute == 5) l->times = *value;
  return 0;
}
int cublasLtMatmulPreferenceCreate(void **d) { *d = (void *)64; return 0; }
int cublasLtMatmulPreferenceDestroy(void *d) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(void) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(
    void *h, void *o, void *a, void *b, void *c, void *d, void *p, int n, void *results, int *found) {
  *found = 1;
  return 0;
}
int cublasLtMatmul(
    void *h, struct product *p, const void *alpha, const void *a, struct layout *la, const void *b, struct layout *lb,
    const void *beta, const void *c, struct layout *lc, void *d, struct layout *ld, const void *algorithm,
    void *workspace, size bytes, void *stream) {
  double inner = p->transposed[0] ? la->rows : la->columns;
  null_gpu_product(ld->rows, ld->columns, inner, ld->times, itemsize(la->type), stream);
  return 0;
}
