/* A CUDA runtime, driver and cuBLAS for machines without a GPU, in one library that is preloaded before NVIDIA's.

   Device memory is host memory, and copies are real. So all work of the host is real: streams, events, pinned memory,
   captures, the caching allocator, running out of memory. The library counts kernels and matrix products but computes
   nothing. A capture refuses the same calls as a real one. The real libraries answer all other functions, mostly with
   "not supported in the installed CUDA driver"; add such a function here when torch needs it.

   Environment variables:
   NULL_GPU=75, 80 or 90 selects the card (T4, A100 or H100).
   NULL_GPU_MEMORY_MB is its memory.
   NULL_GPU_DEVICES is the number of cards.
   NULL_GPU_FAIL=N makes all allocations fail from the N-th on; N:COUNT makes COUNT of them fail.
   NULL_GPU_STILL=1 counts memsets and copies within device memory without doing them, to measure host time. */
#include <driver_types.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OK, OUT_OF_MEMORY = 2, CAPTURE_UNSUPPORTED = 900 };
typedef unsigned long size;
typedef struct { unsigned x, y, z; } grid;

/* ---- counters ---- */
enum {
  LAUNCHES, PRODUCTS, CAPTURED, SYNCHRONISATIONS, TO_DEVICE, TO_HOST, PAGEABLE, WITHIN, MEMSETS, ALLOCATIONS,
  PINNED_ALLOCATIONS, CAPTURES, REPLAYS, REFUSED, KINDS
};
const char null_gpu_names[] =
    "launches products captured synchronisations to_device to_host pageable within memsets allocations "
    "pinned_allocations captures replays refused";
long null_gpu_counts[KINDS];
double null_gpu_flops, null_gpu_product_bytes; /* totals of all matrix products */
long null_gpu_replayed;                        /* kernels and products in replayed graphs */
static void count(int kind) { __sync_fetch_and_add(&null_gpu_counts[kind], 1); }

/* ---- captures: one stream at a time, by one thread ---- */
static void *capture_stream;
static __thread int capturing;
static long captured_before;
static int captured(void *stream) { return capture_stream && stream == capture_stream; }
static int refused(void) { /* count and refuse a call that is not allowed in a capturing thread */
  if (capturing) count(REFUSED);
  return capturing;
}

/* ---- kernels and their names ---- */
static struct kernel { const void *function; const char *name; long launches; } kernels[1 << 17];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernel *kernel_of(const void *function) {
  size i = ((size)function >> 4) * 0x9E3779B97F4A7C15ul >> 47;
  while (kernels[i].function && kernels[i].function != function) i = (i + 1) % (1 << 17);
  kernels[i].function = function;
  return &kernels[i];
}
const char *null_gpu_kernel(long i, long *launches) { /* the i-th slot of the table; NULL if it is empty */
  *launches = kernels[i].launches;
  return kernels[i].name;
}
void null_gpu_launch(const void *function, void *stream) {
  count(captured(stream) ? CAPTURED : LAUNCHES);
  pthread_mutex_lock(&lock);
  kernel_of(function)->launches++;
  pthread_mutex_unlock(&lock);
}
void null_gpu_product(double rows, double columns, double inner, double times, double itemsize, void *stream) {
  count(captured(stream) ? CAPTURED : PRODUCTS);
  null_gpu_flops += 2 * rows * columns * inner * times;
  null_gpu_product_bytes += itemsize * times * (rows * inner + inner * columns + rows * columns);
}
void **__cudaRegisterFatBinary(void *binary) { return malloc(8); }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterVar(void) {}
void __cudaRegisterFunction(void **handle, const void *function, char *device, const char *name) {
  kernel_of(function)->name = name;
}
int __cudaGetKernel(const void **kernel, const void *function) { *kernel = function; return OK; }
int __cudaLaunchKernel(const void *f, grid g, grid b, void **a, size shared, void *s) { null_gpu_launch(f, s); return OK; }
int cudaLaunchKernel(const void *f, grid g, grid b, void **a, size shared, void *s) { null_gpu_launch(f, s); return OK; }
int cudaLaunchCooperativeKernel(const void *f, grid g, grid b, void **a, size shared, void *s) {
  null_gpu_launch(f, s);
  return OK;
}
int cudaLaunchKernelExC(const struct cudaLaunchConfig_st *c, const void *f, void **a) { null_gpu_launch(f, c->stream); return OK; }
int cudaFuncSetAttribute(const void *f, int a, int v) { return OK; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int b, size s) { *n = 1; return OK; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size s, unsigned g) {
  *n = 1;
  return OK;
}

/* ---- the device ---- */
static const struct card {
  const char *name;
  int major, minor, multiprocessors, shared, threads;
  size megabytes;
} CARDS[] = {{"null T4", 7, 5, 40, 65536, 1024, 15360}, {"null A100", 8, 0, 108, 166912, 2048, 40960},
             {"null H100", 9, 0, 132, 232448, 2048, 81559}};
static __thread int device;
static long setting(const char *name, long default_value) {
  const char *text = getenv(name);
  return text && *text ? atol(text) : default_value;
}
static const struct card *card(void) {
  long number = setting("NULL_GPU", 90);
  return &CARDS[number == 75 ? 0 : number == 80 ? 1 : 2];
}
static size memory(void) { return (size)setting("NULL_GPU_MEMORY_MB", card()->megabytes) << 20; }
int cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024, a->numRegs = 64;
  a->ptxVersion = a->binaryVersion = 10 * card()->major + card()->minor; /* CUB uses it to choose kernels */
  return OK;
}
int cudaGetDeviceCount(int *n) { *n = setting("NULL_GPU_DEVICES", 1); return OK; }
int cudaGetDevice(int *d) { *d = device; return OK; }
int cudaSetDevice(int d) { device = d; return OK; }
int cudaDriverGetVersion(int *v) { *v = 13000; return OK; }
int cudaRuntimeGetVersion(int *v) { *v = 13000; return OK; }
int cudaGetLastError(void) { return OK; }
int cudaPeekAtLastError(void) { return OK; }
int cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return OK; }
int cudaDeviceGetPCIBusId(char *text, int n, int d) { snprintf(text, n, "0000:%02d:00.0", d); return OK; }
int cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  const struct card *c = card();
  memset(p, 0, sizeof *p);
  strcpy(p->name, c->name);
  p->major = c->major, p->minor = c->minor, p->multiProcessorCount = c->multiprocessors, p->totalGlobalMem = memory();
  p->warpSize = 32, p->memoryBusWidth = 5120, p->maxThreadsPerMultiProcessor = c->threads, p->l2CacheSize = 50 << 20;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->sharedMemPerBlock = 49152, p->sharedMemPerBlockOptin = c->shared, p->sharedMemPerMultiprocessor = c->shared + 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->pciBusID = d;
  return OK;
}
int cudaDeviceGetAttribute(int *v, int attribute, int d) {
  const struct card *c = card();
  switch (attribute) {
    case 1: case 2: case 3: *v = 1024; break; /* threads per block, and along x and y */
    case 4: *v = 64; break;
    case 5: *v = 2147483647; break; /* blocks along x, y and z */
    case 6: case 7: *v = 65535; break;
    case 8: *v = 49152; break;  /* shared memory per block */
    case 10: *v = 32; break;    /* warp */
    case 12: case 82: *v = 65536; break; /* registers per block, per multiprocessor */
    case 16: *v = c->multiprocessors; break;
    case 39: *v = c->threads; break;
    case 75: *v = c->major; break;
    case 76: *v = c->minor; break;
    case 81: *v = c->shared + 1024; break;
    case 97: *v = c->shared; break; /* shared memory per block, opt-in */
    default: *v = 0;
  }
  return OK;
}

/* ---- memory: host pages, which take physical memory once they are written ---- */
static struct block { char *start; size bytes; int pinned; struct block *next; } *blocks;
static size used;
static struct block *block_of(const void *p) {
  struct block *b = blocks;
  while (b && !((char *)p >= b->start && (char *)p < b->start + b->bytes)) b = b->next;
  return b;
}
static int pinned(const void *p) {
  pthread_mutex_lock(&lock);
  struct block *b = block_of(p);
  pthread_mutex_unlock(&lock);
  return b && b->pinned;
}
static int allocate(void **p, size bytes, int pin) {
  char *start = mmap(0, bytes + !bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return OUT_OF_MEMORY;
  struct block *b = malloc(sizeof *b);
  pthread_mutex_lock(&lock);
  *b = (struct block){start, bytes + !bytes, pin, blocks};
  blocks = b, used += pin ? 0 : bytes;
  pthread_mutex_unlock(&lock);
  *p = start;
  return OK;
}
static int release(void *p) {
  pthread_mutex_lock(&lock);
  struct block **link = &blocks;
  while (*link && (*link)->start != p) link = &(*link)->next;
  struct block *b = *link;
  if (b) *link = b->next, used -= b->pinned ? 0 : b->bytes;
  pthread_mutex_unlock(&lock);
  if (b) munmap(b->start, b->bytes), free(b);
  return OK;
}
static int fails(long number) {
  const char *text = getenv("NULL_GPU_FAIL"), *colon = text ? strchr(text, ':') : 0;
  if (!text || !*text) return 0;
  return number >= atol(text) && (!colon || number < atol(text) + atol(colon + 1));
}
int cudaMalloc(void **p, size n) {
  count(ALLOCATIONS);
  if (fails(null_gpu_counts[ALLOCATIONS]) || used + n > memory()) return OUT_OF_MEMORY;
  return allocate(p, n, 0);
}
int cudaFree(void *p) { return release(p); }
int cudaHostAlloc(void **p, size n, unsigned f) { count(PINNED_ALLOCATIONS); return allocate(p, n, 1); }
int cudaFreeHost(void *p) { return release(p); }
int cudaMemGetInfo(size *free_, size *total) { *total = memory(), *free_ = *total - used; return OK; }
static int moves(void) {
  static long still = -1;
  if (still < 0) still = setting("NULL_GPU_STILL", 0);
  return !still;
}
int cudaMemsetAsync(void *d, int v, size n, void *s) {
  count(MEMSETS);
  if (moves() && !captured(s)) memset(d, v, n);
  return OK;
}
int cudaMemset(void *d, int v, size n) { return cudaMemsetAsync(d, v, n, 0); }
int cudaMemcpyAsync(void *d, const void *s, size n, int kind, void *stream) {
  int pageable = (kind == 1 && !pinned(s)) || (kind == 2 && !pinned(d));
  if (pageable && captured(stream)) return count(REFUSED), CAPTURE_UNSUPPORTED;
  if (pageable) count(PAGEABLE);
  count(kind == 1 ? TO_DEVICE : kind == 2 ? TO_HOST : WITHIN);
  if (!captured(stream) && (moves() || kind == 1 || kind == 2)) memmove(d, s, n);
  return OK;
}
int cudaMemcpy2DAsync(void *d, size dp, const void *s, size sp, size w, size h, int kind, void *stream) {
  for (size i = 0; i < h; i++) memmove((char *)d + i * dp, (char *)s + i * sp, w);
  count(kind == 1 ? TO_DEVICE : kind == 2 ? TO_HOST : WITHIN);
  return OK;
}
int cudaMemcpy(void *d, const void *s, size n, int kind) {
  if (refused()) return CAPTURE_UNSUPPORTED;
  count(SYNCHRONISATIONS);
  return cudaMemcpyAsync(d, s, n, kind, 0);
}
int cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  pthread_mutex_lock(&lock);
  struct block *b = block_of(p);
  pthread_mutex_unlock(&lock);
  memset(a, 0, sizeof *a);
  a->type = !b ? cudaMemoryTypeUnregistered : b->pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  if (b) a->devicePointer = (void *)p;
  if (b && b->pinned) a->hostPointer = (void *)p;
  return OK;
}

/* ---- streams, events, graphs; a graph's handle is a pointer, other handles are numbers ---- */
static long next_handle = 16;
static int make(void **handle) { *handle = (void *)__sync_fetch_and_add(&next_handle, 16); return OK; }
static int synchronize(void) {
  if (refused()) return CAPTURE_UNSUPPORTED;
  count(SYNCHRONISATIONS);
  return OK;
}
int cudaDeviceGetStreamPriorityRange(int *a, int *b) { *a = 0, *b = -5; return OK; }
int cudaStreamCreateWithPriority(void **s, unsigned f, int p) { return make(s); }
int cudaStreamCreateWithFlags(void **s, unsigned f) { return make(s); }
int cudaStreamDestroy(void *s) { return OK; }
int cudaStreamQuery(void *s) { return OK; }
int cudaStreamWaitEvent(void *s, void *e, unsigned f) { return OK; }
int cudaStreamGetPriority(void *s, int *p) { *p = 0; return OK; }
int cudaStreamSynchronize(void *s) { return synchronize(); }
int cudaEventSynchronize(void *e) { return synchronize(); }
int cudaDeviceSynchronize(void) { return synchronize(); }
int cudaEventCreateWithFlags(void **e, unsigned f) { return make(e); }
int cudaEventRecord(void *e, void *s) { return OK; }
int cudaEventRecordWithFlags(void *e, void *s, unsigned f) { return OK; }
int cudaEventQuery(void *e) { return OK; }
int cudaEventDestroy(void *e) { return OK; }
int cudaEventElapsedTime(float *ms, void *a, void *b) { *ms = 1; return OK; }
int cudaThreadExchangeStreamCaptureMode(int *m) { return OK; }
int cudaStreamIsCapturing(void *s, int *c) { *c = captured(s); return OK; }
int cudaStreamGetCaptureInfo(void *s, int *c, size *id, void **g, void ***d, void **e, size *n) {
  *c = captured(s);
  if (id) *id = null_gpu_counts[CAPTURES];
  if (g) *g = (void *)16;
  if (n) *n = 0;
  return OK;
}
int cudaStreamBeginCapture(void *s, int m) {
  if (capture_stream) return count(REFUSED), CAPTURE_UNSUPPORTED;
  capture_stream = s, capturing = 1, captured_before = null_gpu_counts[CAPTURED];
  count(CAPTURES);
  return OK;
}
int cudaStreamBeginCaptureToGraph(void *s, void *g, void *a, void *b, size n, int m) { return cudaStreamBeginCapture(s, m); }
int cudaStreamEndCapture(void *s, void **graph) { /* a graph is the number of its kernels and products */
  long *nodes = malloc(sizeof *nodes);
  capture_stream = 0, capturing = 0;
  *nodes = null_gpu_counts[CAPTURED] - captured_before;
  *graph = nodes;
  return OK;
}
int cudaGraphCreate(void **g, unsigned f) { return make(g); }
int cudaGraphInstantiate(void **x, void *g, size f) { *x = g; return OK; }
int cudaGraphInstantiateWithFlags(void **x, void *g, size f) { *x = g; return OK; }
int cudaGraphGetNodes(void *g, void **nodes, size *n) { *n = *(long *)g; return OK; }
int cudaGraphLaunch(void *x, void *s) {
  count(REPLAYS);
  null_gpu_replayed += *(long *)x;
  return OK;
}
int cudaGraphUpload(void *x, void *s) { return OK; }
int cudaGraphDestroy(void *g) { return OK; }
int cudaGraphExecDestroy(void *g) { return OK; }
