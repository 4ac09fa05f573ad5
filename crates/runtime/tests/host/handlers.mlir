// Handlers of ops that are functions, and tensors in other forms. QUEUES: all

func @twice(%ch: !tfrt.chain, %x: !corert.tensorhandle) -> (!tfrt.chain, !corert.tensorhandle) {
  %cpu = corert.get_op_handler %ch "cpu"
  %y = corert.executeop(%cpu) "tfrt_test.add"(%x, %x) : 1
  tfrt.return %ch, %y : !tfrt.chain, !corert.tensorhandle
}

func @late(%ch: !tfrt.chain, %x: !corert.tensorhandle) -> (!tfrt.chain, !corert.tensorhandle) {
  %cpu = corert.get_op_handler %ch "cpu"
  %y = corert.executeop(%cpu) "tfrt_test.async.noop"(%x) : 1
  %n = "tfrt_test.async_constant.i1"() {value = true} : () -> i1
  %z = tfrt.if %n, %y : (!corert.tensorhandle) -> (!corert.tensorhandle) {
    tfrt.return %y : !corert.tensorhandle
  } else {
    tfrt.return %y : !corert.tensorhandle
  }
  tfrt.return %ch, %z : !tfrt.chain, !corert.tensorhandle
}

// PRINTS: DenseHostTensor dtype = I32, shape = [2], values = [12, 12]
// PRINTS: 'composite' returned !tfrt.chain value
func @composite() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu0 = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %ch1 = corert.register_op_handler %cpu0 "cpu"
  %cpu = corert.get_op_handler %ch1 "cpu"
  %all = "corert.create_composite_op_handler"(%cpu) {op_names = ["my.twice", "my.late"], ops = [@twice, @late]} : (!corert.ophandler) -> !corert.ophandler
  %a = corert.executeop(%all) "tfrt_test.create_dense_tensor"() {shape = [2], values = [3 : i32]} : 1
  %b = corert.executeop(%all) "my.twice"(%a) : 1
  %c = corert.executeop(%all) "my.late"(%b) : 1
  %ch2, %d = corert.executeop.seq(%all, %ch1) "my.twice"(%c) : 1
  %ch3 = "corert.print_tensorhandle"(%d, %ch2) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return %ch3 : !tfrt.chain
}

// PRINTS: DenseHostTensor dtype = I32, shape = [2, 2], values = [7, 7, 7, 7]
// PRINTS: CooHostTensor dtype = I32, shape = [2], indices = [1], values = [5]
// PRINTS: DenseHostTensor dtype = I32, shape = [2], values = [0, 5]
// PRINTS: StringHostTensor shape = [1], values = ["s"]
func @forms() {
  %ch0 = tfrt.new.chain
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %device = "tfrt.get_device"(%ch0) {device_name = "CPU:0"} : (!tfrt.chain) -> !tfrt.device
  // One number for all elements becomes a dense tensor.
  %a = corert.executeop(%cpu) "tfrt_test.create_from_scalar"() {shape = [2, 2], value = 7 : i32} : 1
  %at = corert.get_dst_tensor_type %a, %device
  %a1 = corert.transfer %a, %device, %at
  %ch1 = "corert.print_tensorhandle"(%a1, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  // Dense to sparse and back.
  %coo = "corert.get_tensor_type"() {name = "CooHost"} : () -> !tfrt.tensor_type
  %b = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [2], values = [0 : i32, 5 : i32]} : 1
  %b1 = corert.transfer %b, %device, %coo
  %ch2 = "corert.print_tensorhandle"(%b1, %ch1) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %bt = corert.get_dst_tensor_type %b1, %device
  %b2 = corert.transfer %b1, %device, %bt
  %ch3 = "corert.print_tensorhandle"(%b2, %ch2) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  // Strings stay what they are.
  %s = corert.const_string_tensor {shape = [1], value = ["s"]}
  %st = corert.get_dst_tensor_type %s, %device
  %s1 = corert.transfer %s, %device, %st
  %ch4 = "corert.print_tensorhandle"(%s1, %ch3) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return
}

// PRINTS: 'no_such_form' returned <<error: Cannot implictly convert StringHost to DenseHost>>
func @no_such_form() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %device = "tfrt.get_device"(%ch0) {device_name = "CPU:0"} : (!tfrt.chain) -> !tfrt.device
  %s = corert.const_string_tensor {shape = [1], value = ["s"]}
  %dense = "corert.get_tensor_type"() {name = "DenseHost"} : () -> !tfrt.tensor_type
  // expected-error @+1 {{Cannot implictly convert StringHost to DenseHost}}
  %s1 = corert.transfer %s, %device, %dense
  %ch1 = "corert.print_tensorhandle"(%s1, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return %ch1 : !tfrt.chain
}

// PRINTS: 'no_such_device' returned <<error: cannot find device GPU:0>>
func @no_such_device() -> !tfrt.device {
  %ch0 = tfrt.new.chain
  // expected-error @+1 {{cannot find device GPU:0}}
  %device = "tfrt.get_device"(%ch0) {device_name = "GPU:0"} : (!tfrt.chain) -> !tfrt.device
  tfrt.return %device : !tfrt.device
}

func @always_with_error(%ch: !tfrt.chain, %x: !corert.tensorhandle) -> (!tfrt.chain, !corert.tensorhandle) {
  // expected-error @+1 {{error chain}}
  %bad = "tfrt_test.error_chain"(%ch) : (!tfrt.chain) -> !tfrt.chain
  tfrt.return %bad, %x : !tfrt.chain, !corert.tensorhandle
}

// A condition whose chain is an error ends the loop.
// PRINTS: 'while_with_bad_condition' returned <<error: error chain>>
func @while_with_bad_condition() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %x = "corert.create_dense_tensor.i32"() {shape = [1], values = [1 : i32]} : () -> !corert.tensorhandle
  %ch1, %y = corert.while @always_with_error @twice (%ch0, %x) : (!corert.tensorhandle)
  tfrt.return %ch1 : !tfrt.chain
}

// PRINTS: 'too_large' returned <<error: Cannot allocate tensor>>
func @too_large() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %cpu = corert.get_op_handler %ch0 "cpu"
  // expected-error @+1 {{Cannot allocate tensor}}
  %x = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [3000000000 : i64, 4000000000 : i64], values = [1.0 : f32]} : 1
  %ch1 = "corert.print_tensorhandle"(%x, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return %ch1 : !tfrt.chain
}

// PRINTS: ScalarHostTensor dtype = F32, shape = [3000000000, 1000000000], value = 2.000000e+00
// PRINTS: 'too_large_a_scalar' returned <<error: Cannot allocate tensor>>
func @too_large_a_scalar() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %cpu = corert.get_op_handler %ch0 "cpu"
  %x = corert.executeop(%cpu) "tfrt_test.create_from_scalar"() {shape = [3000000000 : i64, 1000000000 : i64], value = 1.0 : f32} : 1
  // One number stays one; what needs all elements is refused.
  %y = corert.executeop(%cpu) "tf.AddV2"(%x, %x) : 1
  %ch = "corert.print_tensorhandle"(%y, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  // expected-error @+1 {{Cannot allocate tensor}}
  %z = corert.executeop(%cpu) "tf.Neg"(%y) : 1
  %ch1 = "corert.print_tensorhandle"(%z, %ch) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return %ch1 : !tfrt.chain
}

// An op that returns its input, and integers that wrap.
// PRINTS: DenseHostTensor dtype = I32, shape = [2], values = [-2, 4]
func @identity() {
  %ch0 = tfrt.new.chain
  %cpu = corert.get_op_handler %ch0 "cpu"
  %x = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [2], values = [2147483647 : i32, 2 : i32]} : 1
  %y = corert.executeop(%cpu) "tfrt_test.add"(%x, %x) : 1
  %z = corert.executeop(%cpu) "tfrt_test.identity"(%y) : 1
  "corert.print_tensorhandle"(%z, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return
}
