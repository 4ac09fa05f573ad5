/* Elements of string tensors, where clients look for them. */
#ifndef TENSORFLOW_TSL_PLATFORM_CTSTRING_H_
#define TENSORFLOW_TSL_PLATFORM_CTSTRING_H_

#include "tensorflow/c/tf_tstring.h"

#endif /* TENSORFLOW_TSL_PLATFORM_CTSTRING_H_ */
