/* The functions of libcuda.so.1 that torch and Triton call. The real ptxas compiles Triton's kernels; they are not
   loaded, and each launch is counted under the kernel's name. */
#include <elf.h>
#include <stdio.h>
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

/* A module is its cubin, an ELF file that ends with its section headers. NULL_GPU_KERNELS is a directory for copies. */
struct module { char *bytes; size length; };
int cuModuleLoadData(struct module **m, const char *image) {
  *m = malloc(sizeof **m);
  Elf64_Ehdr *elf = (Elf64_Ehdr *)image;
  (*m)->length = elf->e_shoff + (size)elf->e_shnum * elf->e_shentsize;
  if ((*m)->length < elf->e_phoff + (size)elf->e_phnum * elf->e_phentsize)
    (*m)->length = elf->e_phoff + (size)elf->e_phnum * elf->e_phentsize;
  (*m)->bytes = memcpy(malloc((*m)->length), image, (*m)->length);
  return 0;
}
int cuModuleLoadDataEx(struct module **m, const char *image, unsigned n, int *o, void **v) {
  return cuModuleLoadData(m, image);
}
int cuModuleLoad(struct module **m, const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) return 301; /* file not found */
  *m = malloc(sizeof **m);
  fseek(file, 0, SEEK_END);
  (*m)->length = ftell(file);
  rewind(file);
  (*m)->bytes = malloc((*m)->length);
  fread((*m)->bytes, 1, (*m)->length, file);
  fclose(file);
  return 0;
}
int cuModuleUnload(void *m) { return 0; }
int cuModuleGetFunction(void **f, struct module *m, const char *name) {
  static long number;
  char path[4096];
  *f = malloc(16);
  __cudaRegisterFunction(0, *f, 0, strdup(name));
  if (getenv("NULL_GPU_KERNELS")) {
    snprintf(path, sizeof path, "%s/%ld-%.200s.cubin", getenv("NULL_GPU_KERNELS"), ++number, name);
    FILE *file = fopen(path, "wb");
    if (!file) return 301;
    fwrite(m->bytes, 1, m->length, file);
    fclose(file);
  }
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
