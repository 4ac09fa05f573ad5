// Constants, and ops on tensors of all forms.

// PRINTS: DenseHostTensor dtype = F32, shape = [2, 2], values = [1.000000e+00, 2.000000e+00, 3.000000e+00, 4.000000e+00]
// PRINTS: DenseHostTensor dtype = I32, shape = [3], values = [7, 7, 7]
// PRINTS: DenseHostTensor dtype = F32, shape = [2, 2], values = [1.500000e+00, 0.000000e+00, 3.500000e+00, 0.000000e+00]
func @constants() {
  %ch0 = tfrt.new.chain
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %a = corert.executeop(%cpu) "tf.Const"() {dtype = f32, value = dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>} : 1
  %ch1 = corert.executeop.seq(%cpu, %ch0) "tfrt_test.print"(%a) : 0
  %b = corert.executeop(%cpu) "tf.Const"() {dtype = i32, value = dense<7> : tensor<3xi32>} : 1
  %ch2 = corert.executeop.seq(%cpu, %ch1) "tfrt_test.print"(%b) : 0
  %eye = corert.executeop(%cpu) "Const"() {dtype = f32, value = dense<[[1.0, 0.0], [0.0, 1.0]]> : tensor<2x2xf32>} : 1
  %bias = corert.executeop(%cpu) "tf.Const"() {dtype = f32, value = dense<[0.5, -9.0]> : tensor<2xf32>} : 1
  %c = corert.executeop(%cpu) "tf._FusedMatMul"(%a, %eye, %bias) {fused_ops = ["BiasAdd", "Relu"], transpose_a = false, transpose_b = false} : 1
  %ch3 = corert.executeop.seq(%cpu, %ch2) "tfrt_test.print"(%c) : 0
  tfrt.return
}

// PRINTS: 'not_dense' returned <<error: attribute 'value' is not dense>>
func @not_dense() -> !corert.tensorhandle {
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  // expected-error @+1 {{attribute 'value' is not dense}}
  %a = corert.executeop(%cpu) "tf.Const"() {dtype = i32, value = 7 : i32} : 1
  tfrt.return %a : !corert.tensorhandle
}

// PRINTS: ScalarHostTensor dtype = F32, shape = [2, 3], value = 6.000000e+00
// PRINTS: ScalarHostTensor dtype = F32, shape = [2, 3], value = 0.000000e+00
// PRINTS: DenseHostTensor dtype = F32, shape = [2], values = [6.000000e+00, 6.000000e+00]
func @one_number_stays_one() {
  %ch0 = tfrt.new.chain
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %a = corert.executeop(%cpu) "tfrt_test.create_from_scalar"() {shape = [2, 3], value = 2.0 : f32} : 1
  %b = corert.executeop(%cpu) "tfrt_test.create_from_scalar"() {shape = [3], value = 4.0 : f32} : 1
  %c = corert.executeop(%cpu) "tf.AddV2"(%a, %b) : 1
  %ch1 = corert.executeop.seq(%cpu, %ch0) "tfrt_test.print"(%c) : 0
  %z = corert.executeop(%cpu) "tf.ZerosLike"(%a) {T = f32} : 1
  %ch2 = corert.executeop.seq(%cpu, %ch1) "tfrt_test.print"(%z) : 0
  %d = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [2], values = [2.0 : f32]} : 1
  %e = corert.executeop(%cpu) "tfrt_test.create_from_scalar"() {shape = [], value = 4.0 : f32} : 1
  %f = corert.executeop(%cpu) "tf.AddV2"(%d, %e) : 1
  %ch3 = corert.executeop.seq(%cpu, %ch2) "tfrt_test.print"(%f) : 0
  tfrt.return
}

// PRINTS: CooHostTensor dtype = I32, shape = [2, 3], indices = [0, 0, 1, 2], values = [1, 1]
// PRINTS: DenseHostTensor dtype = I32, shape = [2, 3], values = [2, 0, 0, 0, 0, 2]
// PRINTS: DenseHostTensor dtype = I32, shape = [2, 3], values = [1, 0, 0, 0, 0, 1]
// PRINTS: tensor_type = DenseHost
func @sparse() {
  %ch0 = tfrt.new.chain
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %places = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [2, 2], values = [0 : i64, 0 : i64, 1 : i64, 2 : i64]} : 1
  %values = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [2], values = [1 : i32, 1 : i32]} : 1
  %a = corert.executeop(%cpu) "tfrt_test.create_coo_tensor"(%places, %values) {shape = [2, 3]} : 1
  %ch1 = "corert.print_tensorhandle"(%a, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %b = corert.executeop(%cpu) "tfrt_test.add.denseonly"(%a, %a) : 1
  %ch2 = "corert.print_tensorhandle"(%b, %ch1) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %device = "tfrt.get_device"(%ch0) {device_name = "CPU:0"} : (!tfrt.chain) -> !tfrt.device
  %c = "corert.transfer_inferred_tensortype"(%a, %device) : (!corert.tensorhandle, !tfrt.device) -> !corert.tensorhandle
  %ch3 = "corert.print_tensorhandle"(%c, %ch2) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %type = "tfrt_test.get_static_tensor_type"() {name = "DenseHost"} : () -> !tfrt.tensor_type
  %ch4 = "tfrt_test.print_tensor_type"(%type, %ch3) : (!tfrt.tensor_type, !tfrt.chain) -> !tfrt.chain
  tfrt.return
}

// PRINTS: 'texts_are_not_numbers' returned !corert.tensorhandle value
func @texts_are_not_numbers() -> !corert.tensorhandle {
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %text = corert.const_string_tensor {shape = [], value = ["string"]}
  // expected-error @+1 {{Cannot implictly convert StringHost to DenseHost}}
  %a = corert.executeop(%cpu) "tfrt_test.identity_dense_only"(%text) : 1
  tfrt.return %a : !corert.tensorhandle
}
