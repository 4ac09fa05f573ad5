/* Elements of string tensors, where clients look for them. */
#ifndef TENSORFLOW_CORE_PLATFORM_CTSTRING_INTERNAL_H_
#define TENSORFLOW_CORE_PLATFORM_CTSTRING_INTERNAL_H_

#include "tensorflow/c/tf_tstring.h"

#endif /* TENSORFLOW_CORE_PLATFORM_CTSTRING_INTERNAL_H_ */
