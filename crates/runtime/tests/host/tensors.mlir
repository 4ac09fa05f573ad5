// Tensors of numbers and of texts, shapes, buffers.

// PRINTS: DenseHostTensor dtype = I32, shape = [2, 2], values = [1, 2, 3, 4]
// PRINTS: DenseHostTensor dtype = I32, shape = [2, 2], values = [7, 7, 7, 7]
// PRINTS: int1 = 0
// PRINTS: shape = [2, 2]
func @dense() {
  %ch0 = tfrt.new.chain
  %t = tfrt_dht.create_uninitialized_tensor.i32.2 [2 : i64, 2 : i64]
  %ch1 = tfrt_dht.set_tensor_with_constant_values.i32 %t, %ch0 [1 : i32, 2 : i32, 3 : i32, 4 : i32]
  %ch2 = tfrt_dht.print_tensor %t, %ch1
  %u = tfrt_dht.create_uninitialized_tensor.i32.2 [2 : i64, 2 : i64]
  %ch3 = tfrt_dht.fill_tensor_with_constant.i32 %u, %ch2 7 : i32
  %ch4 = tfrt_dht.print_tensor %u, %ch3
  %same, %ch5 = tfrt_dht.tensor_equal.i32 %t, %u, %ch4
  %ch6 = tfrt.print.i1 %same, %ch5
  %shape = tfrt_dht.get_tensor_shape %t
  %ch7 = ts.print_shape %shape, %ch6
  tfrt.return
}

// PRINTS: StringHostTensor shape = [2], values = ["a", "b"]
func @texts() attributes {tfrt.sync} {
  %t = "tfrt_sht_sync.create_tensor"() {shape = [2], values = ["a", "b"]} : () -> !t.tensor
  tfrt_dht_sync.print_tensor %t
  tfrt.return
}

// PRINTS: DenseHostTensor dtype = F32, shape = [2], values = [5.000000e-01, -1.500000e+00]
func @constants() {
  %ch = tfrt.new.chain
  %t = "tfrt_test.const_dense_attr"() {value = dense<[0.5, -1.5]> : tensor<2xf32>} : () -> !t.tensor
  %done = tfrt_dht.print_tensor %t, %ch
  tfrt.return
}

// PRINTS: 'too_few_values' returned <<error: Incorrect number of values for the tensor: 1, but expected 2>>
func @too_few_values() -> !tfrt.chain {
  %ch = tfrt.new.chain
  %t = tfrt_dht.create_uninitialized_tensor.f32.1 [2 : i64]
  // expected-error @+1 {{Incorrect number of values}}
  %done = tfrt_dht.set_tensor_with_constant_values.f32 %t, %ch [1.0 : f32]
  tfrt.return %done : !tfrt.chain
}
