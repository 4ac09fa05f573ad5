/* Kernels of all kinds, for `libraries.rs`. */
#include "ferroflow_kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(void*) != 8 || sizeof(ferroflow_value) == 32, "as in abi.rs");
_Static_assert(sizeof(void*) != 8 || offsetof(ferroflow_value, as) == 8, "as in abi.rs");
_Static_assert(sizeof(void*) != 8 || sizeof(ferroflow_tensor) == 32, "as in abi.rs");
_Static_assert(sizeof(void*) != 8 || sizeof(ferroflow_api) == 8 + 17 * 8, "as in abi.rs");

static const ferroflow_api* api;

/* (i32) {factor : i32} -> i32; the state is how often it ran. */
static void scale(ferroflow_call* call, void* state) {
  ferroflow_value x = {.type = FERROFLOW_I32}, factor = {.type = FERROFLOW_I32};
  if (api->arg(call, 0, &x) || api->attribute(call, 0, &factor)) return;
  __atomic_add_fetch((int*)state, 1, __ATOMIC_RELAXED);
  x.as.i32 *= factor.as.i32;
  api->set_result(call, 0, &x);
}

/* (chain) -> chain: prints how often `scale` ran. */
static void print_count(ferroflow_call* call, void* state) {
  char text[64];
  int n = snprintf(text, sizeof text, "scale ran %d times\n", *(int*)state);
  api->print(call, text, (size_t)n);
  ferroflow_value chain = {.type = FERROFLOW_CHAIN};
  api->set_result(call, 0, &chain);
}

/* {text : string, numbers : [f64]} -> (string, f64): what it gets, and the sum. */
static void describe(ferroflow_call* call, void* state) {
  (void)state;
  ferroflow_value text = {.type = FERROFLOW_STRING}, sum = {.type = FERROFLOW_F64};
  const void* data;
  size_t n;
  if (api->attribute(call, 0, &text) || api->array_attribute(call, 1, FERROFLOW_F64, &data, &n)) return;
  sum.as.f64 = 0;
  for (size_t i = 0; i < n; i++) {
    double number;
    memcpy(&number, (const char*)data + i * sizeof number, sizeof number);
    sum.as.f64 += number;
  }
  char shown[256];
  int length = snprintf(shown, sizeof shown, "%.*s: %zu attributes, %zu results", (int)text.as.string.length,
                        text.as.string.data, api->n_attributes(call), api->n_results(call));
  text.as.string.data = shown;
  text.as.string.length = (size_t)length;
  if (api->set_result(call, 0, &text)) return;
  api->set_result(call, 1, &sum);
}

/* (string, chain) -> chain */
static void print_text(ferroflow_call* call, void* state) {
  (void)state;
  ferroflow_value text = {.type = FERROFLOW_STRING}, chain = {.type = FERROFLOW_CHAIN};
  if (api->arg(call, 0, &text) || api->arg(call, 1, &chain)) return;
  api->print(call, text.as.string.data, text.as.string.length);
  api->print(call, "\n", 1);
  api->set_result(call, 0, &chain);
}

struct reversal {
  ferroflow_call* call;
  int failed;
};

static void fill_reversed(const ferroflow_tensor* result, void* state) {
  const ferroflow_tensor* source = state;
  size_t n = source->n_bytes / sizeof(float);
  for (size_t i = 0; i < n; i++) ((float*)result->data)[i] = ((const float*)source->data)[n - 1 - i];
}

static void use_source(const ferroflow_tensor* source, void* state) {
  struct reversal* reversal = state;
  reversal->failed = api->set_tensor(reversal->call, 0, source, fill_reversed, (void*)source);
}

/* (tensor of f32, chain) -> tensor of f32, backwards */
static void reverse(ferroflow_call* call, void* state) {
  (void)state;
  struct reversal reversal = {call, 0};
  api->read_tensor(call, 0, use_source, &reversal);
}

static int n_counters = 0;

static void destroy_counter(void* counter) {
  __atomic_sub_fetch(&n_counters, 1, __ATOMIC_RELAXED);
  free(counter);
}

/* Makes result `i` a new counter. */
static void set_counter(ferroflow_call* call, size_t i) {
  ferroflow_value counter = {.type = FERROFLOW_OBJECT};
  counter.as.object.data = calloc(1, sizeof(int));
  counter.as.object.destroy = destroy_counter;
  counter.as.object.type_name = "counter";
  __atomic_add_fetch(&n_counters, 1, __ATOMIC_RELAXED);
  api->set_result(call, i, &counter);
}

/* () -> counter */
static void new_counter(ferroflow_call* call, void* state) {
  (void)state;
  set_counter(call, 0);
}

/* (counter) -> i32: the next number */
static void next(ferroflow_call* call, void* state) {
  ferroflow_value counter = {.type = FERROFLOW_OBJECT}, number = {.type = FERROFLOW_I32};
  counter.as.object.type_name = state;
  if (api->arg(call, 0, &counter)) return;
  number.as.i32 = __atomic_add_fetch((int*)counter.as.object.data, 1, __ATOMIC_RELAXED);
  api->set_result(call, 0, &number);
}

/* (i32) -> i32: how many counters live. The argument only orders calls. */
static void live_counters(ferroflow_call* call, void* state) {
  (void)state;
  ferroflow_value number = {.type = FERROFLOW_I32};
  number.as.i32 = __atomic_load_n(&n_counters, __ATOMIC_RELAXED);
  api->set_result(call, 0, &number);
}

/* (counter) -> counter: the same. */
static void pass_on(ferroflow_call* call, void* state) {
  (void)state;
  api->forward_arg(call, 0, 0);
}

/* Sets a result that is not there, to an object. */
static void set_too_many(ferroflow_call* call, void* state) {
  (void)state;
  set_counter(call, 7);
}

/* A text and a tensor without bytes. */
static void null_text(ferroflow_call* call, void* state) {
  (void)state;
  ferroflow_value text = {.type = FERROFLOW_STRING};
  text.as.string.data = NULL;
  text.as.string.length = 5;
  api->set_result(call, 0, &text);
}

static void null_dims(ferroflow_call* call, void* state) {
  (void)state;
  ferroflow_tensor like = {.dtype = FERROFLOW_F32, .rank = 2};
  api->set_tensor(call, 0, &like, fill_reversed, NULL);
}

struct settling {
  ferroflow_call* call;
  ferroflow_later* later;
};

static void settle_inside(const ferroflow_tensor* tensor, void* state) {
  ferroflow_value n = {.type = FERROFLOW_I32};
  n.as.i32 = (int32_t)(tensor->n_bytes / sizeof(float));
  api->settle(((struct settling*)state)->later, &n);
}

/* (tensor, chain) -> i32: how many elements, settled while the tensor is read. */
static void count_elements(ferroflow_call* call, void* state) {
  (void)state;
  struct settling settling = {call, api->set_later(call, 0)};
  api->read_tensor(call, 0, settle_inside, &settling);
}

struct work {
  ferroflow_later* later;
  int number;
};

static void* work(void* state) {
  struct work* work = state;
  usleep(1000);
  ferroflow_value value = {.type = FERROFLOW_I32};
  value.as.i32 = work->number + 1;
  if (work->number < 0)
    api->settle_error(work->later, FERROFLOW_OUT_OF_RANGE, "too small, said later");
  else
    api->settle(work->later, &value);
  free(work);
  return NULL;
}

/* (i32) -> i32: one more, from another thread; below zero an error. */
static void add_later(ferroflow_call* call, void* state) {
  (void)state;
  ferroflow_value x = {.type = FERROFLOW_I32};
  if (api->arg(call, 0, &x)) return;
  struct work* w = malloc(sizeof *w);
  w->number = x.as.i32;
  w->later = api->set_later(call, 0);
  if (!w->later) {
    free(w);
    return;
  }
  pthread_t thread;
  pthread_create(&thread, NULL, work, w);
  pthread_detach(thread);
}

/* Fails. */
static void refuse(ferroflow_call* call, void* state) {
  (void)state;
  api->fail(call, FERROFLOW_DATA_LOSS, "no such luck");
}

int ferroflow_register_kernels(const ferroflow_api* table, ferroflow_registry* registry) {
  static int count = 0;
  if (table->version < FERROFLOW_KERNELS_VERSION) return 1;
  api = table;
#ifdef TAKES_A_NAME
  return api->add_kernel(registry, "tfrt.add.i32", scale, &count);
#endif
  if (getenv("FERROFLOW_TEST_REFUSES")) return 7;
  return api->add_kernel(registry, "my.scale", scale, &count) ||
         api->add_sync_kernel(registry, "my.scale_s", scale, &count) ||
         api->add_kernel(registry, "my.print_count", print_count, &count) ||
         api->add_kernel(registry, "my.describe", describe, NULL) ||
         api->add_kernel(registry, "my.print_text", print_text, NULL) ||
         api->add_kernel(registry, "my.reverse", reverse, NULL) ||
         api->add_kernel(registry, "my.new_counter", new_counter, NULL) ||
         api->add_kernel(registry, "my.next", next, "counter") ||
         api->add_kernel(registry, "my.next_of_other", next, "other") ||
         api->add_kernel(registry, "my.live_counters", live_counters, NULL) ||
         api->add_kernel(registry, "my.add_later", add_later, NULL) ||
         api->add_sync_kernel(registry, "my.add_later_s", add_later, NULL) ||
         api->add_kernel(registry, "my.pass_on", pass_on, NULL) ||
         api->add_kernel(registry, "my.set_too_many", set_too_many, NULL) ||
         api->add_kernel(registry, "my.null_text", null_text, NULL) ||
         api->add_kernel(registry, "my.null_dims", null_dims, NULL) ||
         api->add_kernel(registry, "my.count_elements", count_elements, NULL) ||
         api->add_kernel(registry, "my.refuse", refuse, NULL);
}
