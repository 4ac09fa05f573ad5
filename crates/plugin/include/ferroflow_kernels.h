/* Host kernels in a shared library.
 *
 * A library exports `ferroflow_register_kernels`. `ferroflow exec --shared_libs=PATH,...` loads it and calls
 * that function once, with a table of functions; the library registers its kernels by name. A host program
 * then uses them like any other kernel.
 *
 * Functions that return an `int` give 0 for success. A kernel whose call of such a function fails should
 * return at once: the first error of a call is what the kernel fails with, and all of its results that are
 * not set become that error.
 *
 * Kernels may run on any thread, several at a time. A library stays loaded until the process ends. No exception and
 * no longjmp may leave a function that the host calls.
 */
#ifndef FERROFLOW_KERNELS_H_
#define FERROFLOW_KERNELS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this file. A table of a later version begins with the functions of the earlier ones. */
#define FERROFLOW_KERNELS_VERSION 1

/* What the kernels of one library are registered with; valid until `ferroflow_register_kernels` returns. */
typedef struct ferroflow_registry ferroflow_registry;
/* A call of a kernel; valid on the thread that the kernel was called on, until the kernel returns. */
typedef struct ferroflow_call ferroflow_call;
/* A result that comes later; valid until it is settled, on any thread. It must be settled once, also by a kernel that
 * fails; what waits for it would wait forever otherwise. */
typedef struct ferroflow_later ferroflow_later;

/* Types of values; the types of numbers are numbered as in BEF. */
enum {
  FERROFLOW_CHAIN = 0, /* `!tfrt.chain`: no value, only an order */
  FERROFLOW_UI8 = 1,
  FERROFLOW_UI16 = 2,
  FERROFLOW_UI32 = 3,
  FERROFLOW_UI64 = 4,
  FERROFLOW_I1 = 5,
  FERROFLOW_I8 = 6,
  FERROFLOW_I16 = 7,
  FERROFLOW_I32 = 8,
  FERROFLOW_I64 = 9,
  FERROFLOW_F32 = 10,
  FERROFLOW_F64 = 11,
  FERROFLOW_STRING = 16, /* text in UTF-8 */
  FERROFLOW_OBJECT = 255 /* something that libraries know */
};

/* Codes of errors: TensorFlow's. Others count as FERROFLOW_UNKNOWN. */
enum {
  FERROFLOW_CANCELLED = 1,
  FERROFLOW_UNKNOWN = 2,
  FERROFLOW_INVALID_ARGUMENT = 3,
  FERROFLOW_DEADLINE_EXCEEDED = 4,
  FERROFLOW_NOT_FOUND = 5,
  FERROFLOW_ALREADY_EXISTS = 6,
  FERROFLOW_PERMISSION_DENIED = 7,
  FERROFLOW_RESOURCE_EXHAUSTED = 8,
  FERROFLOW_FAILED_PRECONDITION = 9,
  FERROFLOW_ABORTED = 10,
  FERROFLOW_OUT_OF_RANGE = 11,
  FERROFLOW_UNIMPLEMENTED = 12,
  FERROFLOW_INTERNAL = 13,
  FERROFLOW_UNAVAILABLE = 14,
  FERROFLOW_DATA_LOSS = 15
};

/* A value. Text need not end with a zero, and what an argument or an attribute says is in the host: it is
 * valid until the kernel returns. */
typedef struct {
  uint32_t type;
  union {
    uint8_t i1; /* 0 or 1 */
    uint8_t ui8;
    uint16_t ui16;
    uint32_t ui32;
    uint64_t ui64;
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    float f32;
    double f64;
    struct {
      const char* data;
      size_t length;
    } string;
    struct {
      void* data;
      /* Called once, on any thread, when the object has no owner any more; may be null. It must not use the table.
       * Of an argument it is null: the object stays the host's, see `forward_arg`. */
      void (*destroy)(void* data);
      /* Ends with a zero. An argument is only taken for an object of the same name. */
      const char* type_name;
    } object;
  } as;
} ferroflow_value;

/* A tensor of numbers, row by row. */
typedef struct {
  uint32_t dtype; /* FERROFLOW_UI8 ... FERROFLOW_F64 */
  uint32_t rank;
  const int64_t* dims;
  void* data; /* aligned to 64 bytes at least in results */
  size_t n_bytes;
} ferroflow_tensor;

typedef void (*ferroflow_kernel)(ferroflow_call* call, void* state);
typedef void (*ferroflow_use_tensor)(const ferroflow_tensor* tensor, void* state);

typedef struct {
  uint32_t version;
  uint32_t n_bytes; /* of this table */

  /* Adds a kernel for functions of the engine `async`; `state` is given to each of its calls. */
  int (*add_kernel)(ferroflow_registry* registry, const char* name, ferroflow_kernel kernel, void* state);
  /* The same for functions marked `tfrt.sync`. */
  int (*add_sync_kernel)(ferroflow_registry* registry, const char* name, ferroflow_kernel kernel, void* state);

  size_t (*n_args)(const ferroflow_call* call);
  size_t (*n_results)(const ferroflow_call* call);
  size_t (*n_attributes)(const ferroflow_call* call);

  /* Reads argument `i`. Before the call `value->type` says which type the kernel expects, and
   * `value->as.object.type_name` which object. */
  int (*arg)(ferroflow_call* call, size_t i, ferroflow_value* value);
  /* Sets result `i`. Text is copied; an object belongs to the host from now on, even if this fails. */
  int (*set_result)(ferroflow_call* call, size_t i, const ferroflow_value* value);

  /* Makes argument `arg` result `i`, as it is. */
  int (*forward_arg)(ferroflow_call* call, size_t arg, size_t i);

  /* Reads attribute `i`, a number or text of the type that `value->type` says. */
  int (*attribute)(ferroflow_call* call, size_t i, ferroflow_value* value);
  /* Reads attribute `i`, an array of numbers of type `type`. The elements may be unaligned. */
  int (*array_attribute)(ferroflow_call* call, size_t i, uint32_t type, const void** data, size_t* n_elements);

  /* Calls `use` with the tensor that is argument `i`, before this returns. What is settled in `use` is settled when
   * the outermost call of this kind ends. Kernels that write to the tensor must come behind this one, by a chain. */
  int (*read_tensor)(ferroflow_call* call, size_t i, ferroflow_use_tensor use, void* state);
  /* Makes result `i` a tensor of zeros with the type, rank and dims of `like`, whose `data` and `n_bytes` are not
   * looked at; calls `fill` with it before this returns. */
  int (*set_tensor)(ferroflow_call* call, size_t i, const ferroflow_tensor* like, ferroflow_use_tensor fill,
                    void* state);

  /* Makes result `i` one that comes later; null if that is not possible, as in a synchronous function. */
  ferroflow_later* (*set_later)(ferroflow_call* call, size_t i);
  /* Sets the value of such a result, which is treated as by `set_result`. */
  void (*settle)(ferroflow_later* later, const ferroflow_value* value);
  /* Makes such a result an error. */
  void (*settle_error)(ferroflow_later* later, int code, const char* message);

  /* Makes the call fail; `message` ends with a zero. */
  void (*fail)(ferroflow_call* call, int code, const char* message);
  /* Prints to where the program prints. */
  void (*print)(ferroflow_call* call, const char* text, size_t length);
} ferroflow_api;

/* What a library exports. Anything but 0 makes loading it an error. */
int ferroflow_register_kernels(const ferroflow_api* api, ferroflow_registry* registry);

#ifdef __cplusplus
}
#endif
#endif
