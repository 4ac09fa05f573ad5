/* A stand-in for NVIDIA's driver in tests: one device whose memory is the host's and whose streams run
 * everything at once. It checks what it is given. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef uint64_t handle;

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, INVALID_HANDLE = 400, NOT_FOUND = 500 };

static handle current;

CUresult cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
CUresult cuDeviceGetCount(int *n) { *n = 1; return OK; }
CUresult cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal ? INVALID_VALUE : OK; }
CUresult cuDeviceGetName(char *name, int len, int device) {
  strncpy(name, "stand-in", len);
  return device == 7 ? OK : INVALID_VALUE;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1 << 20; return device == 7 ? OK : INVALID_VALUE; }
CUresult cuDevicePrimaryCtxRetain(handle *context, int device) { *context = 70 + device; return OK; }
CUresult cuCtxSetCurrent(handle context) { current = context; return OK; }
CUresult cuCtxSynchronize(void) { return OK; }

static CUresult make(handle *to, char kind) {
  if (current != 77) return INVALID_HANDLE;
  char *made = calloc(2, 1);
  *made = kind;
  *to = (handle)(uintptr_t)made;
  return OK;
}
static int is(handle h, char kind) { return *(char *)(uintptr_t)h == kind; }
static CUresult drop(handle h, char kind) {
  if (!is(h, kind)) return INVALID_HANDLE;
  free((void *)(uintptr_t)h);
  return OK;
}
CUresult cuStreamCreate(handle *to, unsigned flags) { return flags == 1 ? make(to, 's') : INVALID_VALUE; }
CUresult cuStreamDestroy_v2(handle h) { return drop(h, 's'); }
CUresult cuStreamSynchronize(handle h) { return is(h, 's') ? OK : INVALID_HANDLE; }
/* Filling with this byte loses the device: no call of the host is made any more. */
enum { LOSES = 0xee, LAUNCH_FAILED = 719 };
static int lost;
CUresult cuStreamQuery(handle h) { return lost ? LAUNCH_FAILED : is(h, 's') ? OK : INVALID_HANDLE; }
CUresult cuStreamWaitEvent(handle s, handle e, unsigned flags) { return is(s, 's') && is(e, 'e') && !flags ? OK : INVALID_HANDLE; }
CUresult cuEventCreate(handle *to, unsigned flags) { return flags == 2 || flags == 0 ? make(to, 'e') : INVALID_VALUE; }
CUresult cuEventDestroy_v2(handle h) { return drop(h, 'e'); }
/* An event of a stream that is captured cannot be asked for: that invalidates the capture. */
enum { CAPTURE_INVALIDATED = 901, CAPTURED_EVENT = 907 };
static handle captures;
static int invalidated;
CUresult cuEventRecord(handle e, handle s) {
  if (!is(s, 's') || !is(e, 'e')) return INVALID_HANDLE;
  ((char *)(uintptr_t)e)[1] = s == captures;
  return OK;
}
CUresult cuEventElapsedTime(float *ms, handle a, handle b) {
  *ms = 0.5f;
  return is(a, 'e') && is(b, 'e') ? OK : INVALID_HANDLE;
}
CUresult cuEventQuery(handle e) {
  if (!is(e, 'e')) return INVALID_HANDLE;
  if (!((char *)(uintptr_t)e)[1]) return OK;
  invalidated = 1;
  return CAPTURED_EVENT;
}
CUresult cuEventSynchronize(handle e) { return is(e, 'e') ? OK : INVALID_HANDLE; }

CUresult cuMemAlloc_v2(handle *to, size_t n) {
  if (n > 1 << 20) return OUT_OF_MEMORY;
  *to = (handle)(uintptr_t)aligned_alloc(256, (n + 255) / 256 * 256);
  return OK;
}
CUresult cuMemFree_v2(handle at) { free((void *)(uintptr_t)at); return OK; }
CUresult cuMemHostAlloc(void **to, size_t n, unsigned flags) {
  *to = aligned_alloc(256, (n + 255) / 256 * 256);
  return flags == 3 ? OK : INVALID_VALUE;
}
CUresult cuMemFreeHost(void *at) { free(at); return OK; }
/* An operation: a copy of n bytes, n words of 1, 2 or 4 bytes, or y += a * x. */
struct op { handle to, from; size_t n; int word; unsigned v; float a; };
static void run(const struct op *o) {
  void *to = (void *)(uintptr_t)o->to, *from = (void *)(uintptr_t)o->from;
  if (o->word == 0) memmove(to, from, o->n);
  for (size_t i = 0; i < o->n; i++) {
    if (o->word == 1) ((uint8_t *)to)[i] = o->v;
    if (o->word == 2) ((uint16_t *)to)[i] = o->v;
    if (o->word == 4) ((uint32_t *)to)[i] = o->v;
    if (o->word == -1) ((float *)to)[i] += o->a * ((float *)from)[i];
  }
}
/* What is captured on a stream runs when its graph is launched. Tests run in threads, each with a library of its own. */
struct graph { char kind; int n; struct op ops[256]; };
static struct graph *captured;
static CUresult enqueue(handle s, struct op o) {
  if (!is(s, 's')) return INVALID_HANDLE;
  if (s != captures) run(&o);
  else if (invalidated) return CAPTURE_INVALIDATED;
  else if (captured->n == 256) return OUT_OF_MEMORY;
  else captured->ops[captured->n++] = o;
  return OK;
}
CUresult cuMemcpyAsync(handle to, handle from, size_t n, handle s) {
  return enqueue(s, (struct op){.to = to, .from = from, .n = n});
}
CUresult cuMemsetD8Async(handle to, unsigned char v, size_t n, handle s) {
  lost |= v == LOSES;
  return enqueue(s, (struct op){.to = to, .n = n, .word = 1, .v = v});
}
CUresult cuMemsetD16Async(handle to, unsigned short v, size_t n, handle s) {
  return enqueue(s, (struct op){.to = to, .n = n, .word = 2, .v = v});
}
CUresult cuMemsetD32Async(handle to, unsigned v, size_t n, handle s) {
  return enqueue(s, (struct op){.to = to, .n = n, .word = 4, .v = v});
}

CUresult cuModuleLoadData(handle *to, const void *image) {
  return strncmp(image, ".version", 8) ? INVALID_IMAGE : make(to, 'm');
}
CUresult cuModuleUnload(handle h) { return drop(h, 'm'); }
CUresult cuModuleGetFunction(handle *to, handle m, const char *name) {
  if (!is(m, 'm') || strcmp(name, "axpy_f32")) return NOT_FOUND;
  return make(to, 'f');
}
CUresult cuModuleGetGlobal_v2(handle *to, size_t *n, handle m, const char *name) {
  (void)to, (void)n, (void)m, (void)name;
  return NOT_FOUND;
}
CUresult cuLaunchKernel(handle f, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                        unsigned shared, handle s, void **params, void **extra) {
  if (!is(f, 'f') || !is(s, 's') || by * bz * ty * tz != 1 || shared || extra) return INVALID_VALUE;
  int n = *(int *)params[0];
  float a = *(float *)params[1], *x = *(float **)params[2], *y = *(float **)params[3];
  if ((unsigned)n > bx * tx) return INVALID_VALUE;
  return enqueue(s, (struct op){.to = (handle)(uintptr_t)y, .from = (handle)(uintptr_t)x, .n = n, .word = -1, .a = a});
}
CUresult cuLaunchHostFunc(handle s, void (*call)(void *), void *data) {
  if (!is(s, 's')) return INVALID_HANDLE;
  if (!lost) call(data);
  return OK;
}
CUresult cuStreamBeginCapture_v2(handle s, int mode) {
  if (!is(s, 's') || mode != 2 || captures) return INVALID_HANDLE;
  captures = s;
  captured = calloc(1, sizeof *captured);
  captured->kind = 'g';
  return OK;
}
CUresult cuStreamEndCapture(handle s, handle *to) {
  if (s != captures) return INVALID_HANDLE;
  *to = (handle)(uintptr_t)captured;
  captures = 0;
  int failed = invalidated;
  invalidated = 0;
  return failed ? CAPTURE_INVALIDATED : OK;
}
CUresult cuGraphInstantiateWithFlags(handle *to, handle g, unsigned long long flags) {
  if (!is(g, 'g') || flags) return INVALID_HANDLE;
  struct graph *ready = malloc(sizeof *ready);
  *ready = *(struct graph *)(uintptr_t)g;
  ready->kind = 'x';
  *to = (handle)(uintptr_t)ready;
  return OK;
}
CUresult cuGraphLaunch(handle g, handle s) {
  if (!is(g, 'x') || !is(s, 's')) return INVALID_HANDLE;
  struct graph *ready = (struct graph *)(uintptr_t)g;
  for (int i = 0; i < ready->n; i++) run(&ready->ops[i]);
  return OK;
}
CUresult cuGraphDestroy(handle g) { return drop(g, 'g'); }
CUresult cuGraphExecDestroy(handle g) { return drop(g, 'x'); }
CUresult cuGetErrorName(CUresult code, const char **text) {
  *text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == INVALID_IMAGE ? "CUDA_ERROR_INVALID_IMAGE" : NULL;
  return OK;
}
CUresult cuGetErrorString(CUresult code, const char **text) {
  *text = code == OUT_OF_MEMORY ? "out of memory" : NULL;
  return OK;
}
