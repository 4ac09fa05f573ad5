// Attributes of ops, one by one and as lists; shapes of fixed rank; conditions on tensor handles.

// PRINTS: OpAttrs is empty
// PRINTS: OpAttrs contains 2 entries:
// PRINTS:   'list' type=AGGREGATE value=elt_count=2 [{dtype=I32, rank=2, elt_count=4}, {dtype=I64, rank=0, elt_count=1}]
// PRINTS:   'n' type=I32 value=7
// PRINTS: 'attributes' returned !tfrt.chain value
func @attributes() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %attrs = "corert.create_op_attrs"() : () -> !corert.opattrs
  %ch1 = "tfrt_test.corert.op_attrs_print"(%attrs, %ch0) : (!corert.opattrs, !tfrt.chain) -> !tfrt.chain
  %ch2 = "corert.op_attrs_set.aggregate"(%attrs, %ch1) {key = "list", value = [dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>, dense<1> : tensor<i64>]} : (!corert.opattrs, !tfrt.chain) -> !tfrt.chain
  %ch3 = "corert.op_attrs_set.i32"(%attrs, %ch2) {key = "n", value = 7 : i32} : (!corert.opattrs, !tfrt.chain) -> !tfrt.chain
  %ch4 = "tfrt_test.corert.op_attrs_print"(%attrs, %ch3) : (!corert.opattrs, !tfrt.chain) -> !tfrt.chain
  tfrt.return %ch4 : !tfrt.chain
}

// PRINTS: fixed_rank_shape = [2, 57, 92]
// PRINTS: 'shapes' returned !tfrt.chain value
func @shapes() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %shape = ts.build_shape [2 : i64, 57 : i64, 92 : i64]
  %fixed = ts.as_fixed_rank_shape.3 %shape
  %ch1 = ts.print_fixed_rank_shape.3 %fixed, %ch0
  tfrt.return %ch1 : !tfrt.chain
}

func @left(%ch: !tfrt.chain, %a: !corert.tensorhandle, %b: !corert.tensorhandle) -> (!tfrt.chain, !corert.tensorhandle) {
  tfrt.return %ch, %a : !tfrt.chain, !corert.tensorhandle
}

func @right(%ch: !tfrt.chain, %a: !corert.tensorhandle, %b: !corert.tensorhandle) -> (!tfrt.chain, !corert.tensorhandle) {
  tfrt.return %ch, %b : !tfrt.chain, !corert.tensorhandle
}

// A condition may come later; zero is false.
// PRINTS: DenseHostTensor dtype = I32, shape = [1], values = [10]
// PRINTS: DenseHostTensor dtype = I32, shape = [1], values = [20]
// PRINTS: 'conditions' returned !tfrt.chain value
func @conditions() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %a = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [1], values = [10 : i32]} : 1
  %b = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [1], values = [20 : i32]} : 1
  %one = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [1], values = [1 : i32]} : 1
  %zero = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [1], values = [0 : i32]} : 1
  %late = corert.executeop(%cpu) "tfrt_test.async.noop"(%zero) : 1
  %x:2 = corert.cond %one @left @right (%ch0, %a, %b) : (!corert.tensorhandle)
  %y:2 = corert.cond %late @left @right (%x#0, %a, %b) : (!corert.tensorhandle)
  %ch1 = "corert.print_tensorhandle"(%x#1, %y#0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %ch2 = "corert.print_tensorhandle"(%y#1, %ch1) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return %ch2 : !tfrt.chain
}

// Products of integers wrap; their scale and what they are added to.
// PRINTS: DenseHostTensor dtype = I32, shape = [1, 1], values = [1]
// PRINTS: DenseHostTensor dtype = F32, shape = [1, 1], values = [1.600000e+01]
// PRINTS: 'products' returned !tfrt.chain value
func @products() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %a = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [1, 1], values = [2147483647 : i32]} : 1
  %b = corert.executeop(%cpu) "tfrt_test.matmul"(%a, %a) {transpose_a = false, transpose_b = false} : 1
  %ch1 = "corert.print_tensorhandle"(%b, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %x = tfrt_dht.create_uninitialized_tensor.f32.2 [1 : i64, 1 : i64]
  %ch2 = tfrt_dht.fill_tensor_with_constant.f32 %x, %ch1 2.0 : f32
  %y = tfrt_dht.create_uninitialized_tensor.f32.2 [1 : i64, 1 : i64]
  %ch3 = tfrt_dht.fill_tensor_with_constant.f32 %y, %ch2 4.0 : f32
  %alpha = tfrt.constant.f32 3.0
  %beta = tfrt.constant.f32 1.0
  %ch4 = "tfrt_test.matmul.f32.2"(%alpha, %x, %x, %beta, %y, %ch3) : (f32, !t.tensor, !t.tensor, f32, !t.tensor, !tfrt.chain) -> !tfrt.chain
  %ch5 = tfrt_dht.print_tensor %y, %ch4
  tfrt.return %ch5 : !tfrt.chain
}

// What cannot be held, places outside a shape, tensors of another type.
func @refused() {
  %ch0 = tfrt.new.chain
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %a = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [4000000, 0], values = [1 : i32]} : 1
  // expected-error @+1 {{Cannot allocate tensor}}
  %b = corert.executeop(%cpu) "tfrt_test.matmul"(%a, %a) {transpose_a = false, transpose_b = true} : 1
  %i = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [1, 2], values = [0, 2]} : 1
  %v = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() {shape = [1], values = [1 : i32]} : 1
  // expected-error @+1 {{the indices have element 2, which its dimension of size 2 does not have}}
  %c = corert.executeop(%cpu) "tfrt_test.create_coo_tensor"(%i, %v) {shape = [2, 2]} : 1
  %whole = tfrt_dht.create_uninitialized_tensor.i32.1 [1 : i64]
  // expected-error @+1 {{argument 0 is a tensor of i32, kernel expects one of f32}}
  %ch1 = "tfrt_test.relu.f32"(%whole, %whole, %ch0) : (!t.tensor, !t.tensor, !tfrt.chain) -> !tfrt.chain
  tfrt.return
}
