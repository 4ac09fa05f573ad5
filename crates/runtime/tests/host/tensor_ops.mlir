// Ops of TensorFlow on the handler of the CPU.

// PRINTS: DenseHostTensor dtype = F32, shape = [2, 2], values = [1.100000e+01, 1.000000e+00, 2.300000e+01, 3.000000e+00]
// PRINTS: DenseHostTensor dtype = I32, shape = [2], values = [11, 23]
func @product() {
  %ch0 = tfrt.new.chain
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %a = corert.const_dense_tensor dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>
  %b = corert.const_dense_tensor dense<[[1.0, 1.0], [5.0, 0.0]]> : tensor<2x2xf32>
  %c = corert.executeop(%cpu) "tf.MatMul"(%a, %b) : 1
  %ch1 = "corert.print_tensorhandle"(%c, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %axis = corert.const_dense_tensor dense<1> : tensor<i32>
  %max = corert.executeop(%cpu) "tf.Max"(%c, %axis) {keep_dims = false} : 1
  %ints = corert.executeop(%cpu) "tf.Cast"(%max) {DstT = i32} : 1
  %ch2 = "corert.print_tensorhandle"(%ints, %ch1) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return
}

// PRINTS: [0] dispatch 'tf.Relu' 1 argument, 1 result, no attributes
// PRINTS: DenseHostTensor dtype = F32, shape = [2], values = [0.000000e+00, 2.000000e+00]
func @logged() {
  %ch0 = tfrt.new.chain
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %log = "corert.create_logging_op_handler"(%cpu) : (!corert.ophandler) -> !corert.ophandler
  %a = corert.const_dense_tensor dense<[-1.0, 2.0]> : tensor<2xf32>
  %c = corert.executeop(%log) "tf.Relu"(%a) : 1
  %ch1 = "corert.print_tensorhandle"(%c, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return
}

// PRINTS: 'does_not_fit' returned <<error: Dimensions must be equal, but are 2 and 1>>
func @does_not_fit() -> !corert.tensorhandle {
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %a = corert.const_dense_tensor dense<[[1.0, 2.0]]> : tensor<1x2xf32>
  // expected-error @+1 {{Dimensions must be equal}}
  %c = corert.executeop(%cpu) "tf.MatMul"(%a, %a) : 1
  tfrt.return %c : !corert.tensorhandle
}
