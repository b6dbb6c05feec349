/* libcuda.so.1 as torch and Triton ask it. Triton's kernels are compiled by the real ptxas, loaded nowhere, and counted
   at launch under their names. */
#include <stdlib.h>
#include <string.h>

typedef unsigned long size;
struct kernel;
extern void null_gpu_launch(const void *function, void *stream);
extern void __cudaRegisterFunction(void **handle, const void *function, char *device, const char *name);
extern int cudaDeviceGetAttribute(int *v, int attribute, int d);
extern int cudaGetDeviceCount(int *n);

int cuInit(unsigned f) { return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { return cudaGetDeviceCount(n); }
int cuDeviceGet(int *d, int ordinal) { *d = ordinal; return 0; }
int cuDeviceGetAttribute(int *v, int attribute, int d) { return cudaDeviceGetAttribute(v, attribute, d); }
int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *active) { *f = *active = 0; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)16; return 0; }
int cuCtxGetCurrent(void **c) { *c = (void *)16; return 0; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuCtxGetDevice(int *d) { *d = 0; return 0; }
int cuCtxPushCurrent_v2(void *c) { return 0; }
int cuCtxPopCurrent_v2(void **c) { *c = (void *)16; return 0; }
int cuCtxGetLimit(size *v, int l) { *v = 0; return 0; }
int cuCtxSetLimit(int l, size v) { return 0; }
int cuGetErrorString(int e, const char **s) { *s = "null GPU"; return 0; }
int cuGetProcAddress_v2(const char *s, void **p, int v, size f, void *st) { *p = 0; return 500; }
int cuPointerGetAttribute(void *out, int a, size p) { *(size *)out = p; return 0; }
int cuModuleLoad(void **m, const char *f) { *m = (void *)16; return 0; }
int cuModuleLoadData(void **m, const void *i) { *m = (void *)16; return 0; }
int cuModuleLoadDataEx(void **m, const void *i, unsigned n, int *o, void **v) { *m = (void *)16; return 0; }
int cuModuleUnload(void *m) { return 0; }
int cuModuleGetFunction(void **f, void *m, const char *name) {
  *f = malloc(16);
  __cudaRegisterFunction(0, *f, 0, strdup(name));
  return 0;
}
int cuFuncGetAttribute(int *v, int a, void *f) { *v = a == 0 ? 1024 : a == 4 ? 64 : 0; return 0; }
int cuFuncSetAttribute(void *f, int a, int v) { return 0; }
int cuFuncSetCacheConfig(void *f, int c) { return 0; }
int cuOccupancyMaxActiveClusters(int *n, void *f, void *c) { *n = 1; return 0; }
int cuTensorMapEncodeTiled(void) { return 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **arguments, void **extra) {
  null_gpu_launch(f, stream);
  return 0;
}
struct launch_config { unsigned grid[3], block[3], shared; void *stream; };
int cuLaunchKernelEx(const struct launch_config *c, void *f, void **arguments, void **extra) {
  null_gpu_launch(f, c->stream);
  return 0;
}
