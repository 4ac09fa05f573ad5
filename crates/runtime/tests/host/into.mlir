// Kernels that write into existing tensors.

// PRINTS: DenseHostTensor dtype = F32, shape = [2, 2], values = [0.000000e+00, -1.000000e+00, 9.000000e+00, 1.250000e+01]
// PRINTS: DenseHostTensor dtype = F32, shape = [4], values = [1.000000e+00, 4.000000e+00, 1.000000e+00, 4.000000e+00]
// PRINTS: DenseHostTensor dtype = F32, shape = [2], values = [0.000000e+00, 2.000000e+00]
// PRINTS: DenseHostTensor dtype = F32, shape = [2], values = [5.000000e+00, 8.000000e+00]
func @of_synchronous_functions() attributes {tfrt.sync} {
  %a = "tfrt_dht_sync.create_dense_tensor.f32"() {shape = [2, 3], values = [-1.0 : f32, -0.5 : f32, 0.0 : f32, 0.5 : f32, 1.0 : f32, 1.5 : f32]} : () -> !t.tensor
  %b = "tfrt_dht_sync.create_dense_tensor.f32"() {shape = [3, 2], values = [0.0 : f32, 1.0 : f32, 2.0 : f32, 3.0 : f32, 4.0 : f32, 5.0 : f32]} : () -> !t.tensor
  %bias = "tfrt_dht_sync.create_dense_tensor.f32"() {shape = [2], values = [1.0 : f32, 1.5 : f32]} : () -> !t.tensor
  %c = tfrt_dht_sync.create_uninitialized_tensor.f32.2 [2 : i64, 2 : i64]
  "tf_sync._FusedMatMul.f32"(%a, %b, %c, %bias) {fused_ops = ["BiasAdd"], transpose_a = false, transpose_b = false} : (!t.tensor, !t.tensor, !t.tensor, !t.tensor) -> ()
  tfrt_dht_sync.print_tensor %c
  %axis = "tfrt.constant_s.i32"() {value = 0 : i32} : () -> i32
  %two = tfrt_dht_sync.create_uninitialized_tensor.f32.1 [2 : i64]
  "tf_sync.Const"(%two) {value = dense<[1.0, 4.0]> : tensor<2xf32>} : (!t.tensor) -> ()
  %four = tfrt_dht_sync.create_uninitialized_tensor.f32.1 [4 : i64]
  "tf_sync.ConcatV2.f32"(%axis, %two, %two, %four) : (i32, !t.tensor, !t.tensor, !t.tensor) -> ()
  tfrt_dht_sync.print_tensor %four
  %x = "tfrt_dht_sync.create_from_scalar.f32"() {shape = [], value = 5.0 : f32} : () -> !t.tensor
  %y = "tfrt_dht_sync.create_dense_tensor.f32"() {shape = [], values = [8.0 : f32]} : () -> !t.tensor
  %log = "tfrt_dht_sync.create_dense_tensor.f32"() {shape = [2], values = [1.0 : f32, 7.389056 : f32]} : () -> !t.tensor
  "tf_sync.Log.f32"(%log, %two) : (!t.tensor, !t.tensor) -> ()
  tfrt_dht_sync.print_tensor %two
  %z = "tfrt_dht_sync.create_dense_tensor.f32"() {shape = [], values = [5.0 : f32]} : () -> !t.tensor
  "tf_sync.ConcatV2.f32"(%axis, %z, %y, %two) : (i32, !t.tensor, !t.tensor, !t.tensor) -> ()
  tfrt_dht_sync.print_tensor %two
  tfrt.return
}

// PRINTS: DenseHostTensor dtype = I32, shape = [2, 2], values = [1, -1, -1, 1]
// PRINTS: DenseHostTensor dtype = I32, shape = [2, 2], values = [1, 0, 0, 1]
// PRINTS: DenseHostTensor dtype = I32, shape = [2, 2], values = [2, -1, -1, 2]
// PRINTS: DenseHostTensor dtype = I32, shape = [2], values = [0, 1]
// PRINTS: DenseHostTensor dtype = I32, shape = [4], values = [2, -1, -1, 2]
// PRINTS: DenseHostTensor dtype = F32, shape = [1, 1, 1, 1], values = [4.000000e+00]
// PRINTS: int1 = 1
// PRINTS: int1 = 0
func @with_chains() {
  %ch0 = tfrt.new.chain
  %zero = tfrt.constant.i32 0
  %one = tfrt.constant.i32 1
  %a = tfrt_dht.create_uninitialized_tensor.i32.2 [2 : i64, 3 : i64]
  %ch1 = tfrt_dht.set_tensor_with_constant_values.i32 %a, %ch0 [1 : i32, -1 : i32, 1 : i32, -1 : i32, 1 : i32, -1 : i32]
  %b = tfrt_dht.create_uninitialized_tensor.i32.2 [3 : i64, 2 : i64]
  %ch2 = tfrt_dht.set_tensor_with_constant_values.i32 %b, %ch1 [1 : i32, -1 : i32, 1 : i32, -1 : i32, 1 : i32, -1 : i32]
  %c = tfrt_dht.create_uninitialized_tensor.i32.2 [2 : i64, 2 : i64]
  %ch3 = "tfrt_test.matmul.i32.2"(%one, %a, %b, %zero, %c, %ch2) : (i32, !t.tensor, !t.tensor, i32, !t.tensor, !tfrt.chain) -> !tfrt.chain
  %ch4 = tfrt_dht.print_tensor %c, %ch3
  %d = tfrt_dht.create_uninitialized_tensor.i32.2 [2 : i64, 2 : i64]
  %ch5 = "tfrt_test.relu.i32"(%c, %d, %ch4) : (!t.tensor, !t.tensor, !tfrt.chain) -> !tfrt.chain
  %ch6 = tfrt_dht.print_tensor %d, %ch5
  %ch7 = "tfrt_test.add_inplace.i32"(%c, %d, %ch6) : (!t.tensor, !t.tensor, !tfrt.chain) -> !tfrt.chain
  %ch8 = tfrt_dht.print_tensor %d, %ch7
  %most = "tfrt_test.argmax.i32.2"(%d, %ch8) : (!t.tensor, !tfrt.chain) -> !t.tensor
  %ch9 = tfrt_dht.print_tensor %most, %ch8
  %flat = tfrt_dht.create_uninitialized_tensor.i32.1 [4 : i64]
  %ch10 = "tfrt_test.flatten.f32"(%d, %flat, %ch9) : (!t.tensor, !t.tensor, !tfrt.chain) -> !tfrt.chain
  %ch11 = tfrt_dht.print_tensor %flat, %ch10
  %image = tfrt_dht.create_uninitialized_tensor.f32.4 [1 : i64, 2 : i64, 2 : i64, 1 : i64]
  %ch12 = tfrt_dht.set_tensor_with_constant_values.f32 %image, %ch11 [1.0 : f32, 4.0 : f32, 3.0 : f32, 2.0 : f32]
  %pooled = tfrt_dht.create_uninitialized_tensor.f32.4 [1 : i64, 1 : i64, 1 : i64, 1 : i64]
  %ch13 = "tfrt_test.max_pooling_2d.f32"(%image, %pooled, %ch12) {padding = "same", pool_size = [2 : i32, 2 : i32], strides = [2 : i32, 2 : i32]} : (!t.tensor, !t.tensor, !tfrt.chain) -> !tfrt.chain
  %ch14 = tfrt_dht.print_tensor %pooled, %ch13
  %near = tfrt_dht.create_uninitialized_tensor.f32.4 [1 : i64, 1 : i64, 1 : i64, 1 : i64]
  %ch15 = tfrt_dht.fill_tensor_with_constant.f32 %near, %ch14 4.0000005 : f32
  %same, %ch16 = "tfrt_dht.tensor_allclose.f32"(%pooled, %near, %ch15) : (!t.tensor, !t.tensor, !tfrt.chain) -> (i1, !tfrt.chain)
  %ch17 = tfrt.print.i1 %same, %ch16
  %ch18 = tfrt_dht.fill_tensor_with_constant.f32 %near, %ch17 4.001 : f32
  %other, %ch19 = "tfrt_dht.tensor_allclose.1000ulp.f32"(%pooled, %near, %ch18) : (!t.tensor, !t.tensor, !tfrt.chain) -> (i1, !tfrt.chain)
  %ch20 = tfrt.print.i1 %other, %ch19
  tfrt.return
}

func @wrong_padding(%x: !t.tensor, %y: !t.tensor, %ch: !tfrt.chain) -> !tfrt.chain {
  // expected-error @+1 {{padding 'invalid' is not recognized}}
  %ch1 = "tfrt_test.max_pooling_2d.f32"(%x, %y, %ch) {padding = "invalid", pool_size = [3 : i32, 3 : i32], strides = [3 : i32, 3 : i32]} : (!t.tensor, !t.tensor, !tfrt.chain) -> !tfrt.chain
  tfrt.return %ch1 : !tfrt.chain
}

func @does_not_fit() {
  %ch0 = tfrt.new.chain
  %input = tfrt_dht.create_uninitialized_tensor.f32.4 [2 : i64, 3 : i64, 3 : i64, 6 : i64]
  %output = tfrt_dht.create_uninitialized_tensor.f32.4 [2 : i64, 2 : i64, 1 : i64, 6 : i64]
  %ch1 = tfrt.call @wrong_padding(%input, %output, %ch0) : (!t.tensor, !t.tensor, !tfrt.chain) -> !tfrt.chain
  // expected-error @+1 {{output shape [2, 2, 1, 6] does not match the expected output shape [2, 1, 1, 6]}}
  %ch2 = "tfrt_test.max_pooling_2d.f32"(%input, %output, %ch0) {padding = "valid", pool_size = [3 : i32, 3 : i32], strides = [3 : i32, 3 : i32]} : (!t.tensor, !t.tensor, !tfrt.chain) -> !tfrt.chain
  tfrt.return
}

// PRINTS: string = part-0007 of 12
// PRINTS: int32 = 6
func @texts() {
  %ch0 = tfrt.new.chain
  %format = "tfrt_test.get_string"() {value = "part-%04d of 12"} : () -> !tfrt.string
  %seven = tfrt.constant.i32 7
  %text = "tfrt_test.format_string"(%format, %seven) : (!tfrt.string, i32) -> !tfrt.string
  %ch1 = "tfrt_test.print_string"(%text, %ch0) : (!tfrt.string, !tfrt.chain) -> !tfrt.chain
  %one = tfrt.constant.i32 1
  %two = tfrt.constant.i32 2
  %three = tfrt.constant.i32 3
  %six = "tfrt_test.sum"(%one, %two, %three) : (i32, i32, i32) -> i32
  %ch2 = tfrt.print.i32 %six, %ch1
  %path = "tfrt_test.get_string"() {value = "tests/host/none"} : () -> !tfrt.string
  // expected-error @+1 {{failed to read from file tests/host/none}}
  %none = "tfrt_test.read_string_from_file"(%path) : (!tfrt.string) -> !tfrt.string
  tfrt.return
}
