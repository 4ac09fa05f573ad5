/* A stand-in for NVIDIA's driver in tests: one device whose memory is the host's and whose streams run
 * everything at once. It checks what it is given. Kernels are those of an interpreter, if a test attaches one
 * (crates/ptx), else it has axpy_f32 alone. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef uint64_t handle;

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, INVALID_HANDLE = 400, NOT_FOUND = 500 };

/* An argument of a launch: the room `device` hands over the memory that it stands for behind its value. */
struct param { uint64_t value, start; size_t bytes; };
/* The calls of an interpreter. What it makes has numbers; all ones are for an error, whose text `error` returns. */
struct interpreter {
  uint64_t (*load)(const char *text, unsigned capability);
  uint64_t (*function)(uint64_t module, const char *name); /* 0 if there is none */
  uint64_t (*prepare)(uint64_t function, const unsigned *sizes, const struct param *const *params);
  int (*run)(uint64_t launch); /* 0 if all is well */
  void (*forget)(uint64_t launch);
  const char *(*error)(void);
};
static const uint64_t FAILED = ~(uint64_t)0;
static const struct interpreter *interpreter;
static unsigned capability;
void interpret_with(const struct interpreter *with, unsigned of) { interpreter = with, capability = of; }

static handle current;
static size_t memory(void) { return interpreter ? (size_t)4 << 30 : 1 << 20; }

CUresult cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
CUresult cuDeviceGetCount(int *n) { *n = 1; return OK; }
CUresult cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal ? INVALID_VALUE : OK; }
CUresult cuDeviceGetName(char *name, int len, int device) {
  strncpy(name, "stand-in", len);
  return device == 7 ? OK : INVALID_VALUE;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = memory(); return device == 7 ? OK : INVALID_VALUE; }
CUresult cuDevicePrimaryCtxRetain(handle *context, int device) { *context = 70 + device; return OK; }
CUresult cuCtxSetCurrent(handle context) { current = context; return OK; }
CUresult cuCtxSynchronize(void) { return OK; }

/* A handle is of something that starts with its kind. */
struct made { char kind, is_captured; uint64_t number; };
static CUresult make(handle *to, char kind) {
  if (current != 77) return INVALID_HANDLE;
  struct made *made = calloc(1, sizeof *made);
  made->kind = kind;
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
  if (n > memory()) return OUT_OF_MEMORY;
  void *at = aligned_alloc(256, (n + 255) / 256 * 256);
  if (!at) return OUT_OF_MEMORY;
  /* Floats that are no numbers: what is read before it is written shows. */
  if (interpreter) memset(at, 0xff, n);
  *to = (handle)(uintptr_t)at;
  return OK;
}
CUresult cuMemFree_v2(handle at) { free((void *)(uintptr_t)at); return OK; }
CUresult cuMemHostAlloc(void **to, size_t n, unsigned flags) {
  *to = aligned_alloc(256, (n + 255) / 256 * 256);
  return flags == 3 ? OK : INVALID_VALUE;
}
CUresult cuMemFreeHost(void *at) { free(at); return OK; }
/* An operation: a copy of n bytes, n words of 1, 2 or 4 bytes, y += a * x, or a launch of the interpreter. */
struct op { handle to, from; size_t n; int word; unsigned v; float a; uint64_t launch; };
static CUresult run(const struct op *o) {
  if (o->launch) return interpreter->run(o->launch) ? LAUNCH_FAILED : OK;
  void *to = (void *)(uintptr_t)o->to, *from = (void *)(uintptr_t)o->from;
  if (o->word == 0) memmove(to, from, o->n);
  for (size_t i = 0; i < o->n; i++) {
    if (o->word == 1) ((uint8_t *)to)[i] = o->v;
    if (o->word == 2) ((uint16_t *)to)[i] = o->v;
    if (o->word == 4) ((uint32_t *)to)[i] = o->v;
    if (o->word == -1) ((float *)to)[i] += o->a * ((float *)from)[i];
  }
  return OK;
}
/* What is captured on a stream runs when its graph is launched. Tests run in threads, each with a library of its own. */
enum { MOST = 1024 };
struct graph { char kind; int n; struct op ops[MOST]; };
static struct graph *captured;
static CUresult enqueue(handle s, struct op o) {
  if (!is(s, 's')) return INVALID_HANDLE;
  if (s != captures) {
    CUresult ran = run(&o);
    if (o.launch) interpreter->forget(o.launch);
    return ran;
  }
  if (invalidated) return CAPTURE_INVALIDATED;
  if (captured->n == MOST) return OUT_OF_MEMORY;
  captured->ops[captured->n++] = o;
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
  if (!interpreter) return strncmp(image, ".version", 8) ? INVALID_IMAGE : make(to, 'm');
  uint64_t number = interpreter->load(image, capability);
  if (number == FAILED) return INVALID_IMAGE;
  CUresult result = make(to, 'm');
  if (!result) ((struct made *)(uintptr_t)*to)->number = number;
  return result;
}
CUresult cuModuleUnload(handle h) { return drop(h, 'm'); }
CUresult cuModuleGetFunction(handle *to, handle m, const char *name) {
  if (!is(m, 'm')) return NOT_FOUND;
  uint64_t number = 0;
  if (interpreter) number = interpreter->function(((struct made *)(uintptr_t)m)->number, name);
  if (number == FAILED) return INVALID_IMAGE;
  if (interpreter ? !number : strcmp(name, "axpy_f32")) return NOT_FOUND;
  CUresult result = make(to, 'f');
  if (!result) ((struct made *)(uintptr_t)*to)->number = number;
  return result;
}
CUresult cuModuleGetGlobal_v2(handle *to, size_t *n, handle m, const char *name) {
  (void)to, (void)n, (void)m, (void)name;
  return NOT_FOUND;
}
CUresult cuLaunchKernel(handle f, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                        unsigned shared, handle s, void **params, void **extra) {
  if (!is(f, 'f') || !is(s, 's') || extra) return INVALID_VALUE;
  if (interpreter) {
    unsigned sizes[7] = {bx, by, bz, tx, ty, tz, shared};
    uint64_t function = ((struct made *)(uintptr_t)f)->number;
    uint64_t launch = interpreter->prepare(function, sizes, (const struct param *const *)params);
    return launch == FAILED ? INVALID_VALUE : enqueue(s, (struct op){.launch = launch});
  }
  if (by * bz * ty * tz != 1 || shared) return INVALID_VALUE;
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
  CUresult ran = OK;
  for (int i = 0; i < ready->n && !ran; i++) ran = run(&ready->ops[i]);
  return ran;
}
CUresult cuGraphDestroy(handle g) { return drop(g, 'g'); }
CUresult cuGraphExecDestroy(handle g) { return drop(g, 'x'); }
CUresult cuGetErrorName(CUresult code, const char **text) {
  *text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == INVALID_IMAGE ? "CUDA_ERROR_INVALID_IMAGE" : NULL;
  return OK;
}
CUresult cuGetErrorString(CUresult code, const char **text) {
  int is_of_interpreter = code == LAUNCH_FAILED || code == INVALID_IMAGE || code == INVALID_VALUE;
  *text = code == OUT_OF_MEMORY ? "out of memory" : interpreter && is_of_interpreter ? interpreter->error() : NULL;
  return OK;
}
