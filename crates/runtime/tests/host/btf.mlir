// Tensors from a file. It holds [[1.5, -2], [3, 4]] of f32, [1, -2, 3] of i8, and a sparse tensor of
// i32 of shape [2, 3] with 5 at (0, 1) and 7 at (1, 2). QUEUES: all

// PRINTS: DenseHostTensor dtype = F32, shape = [2, 2], values = [1.500000e+00, -2.000000e+00, 3.000000e+00, 4.000000e+00]
// PRINTS: DenseHostTensor dtype = I8, shape = [3], values = [1, -2, 3]
// PRINTS: CooHostTensor dtype = I32, shape = [2, 3], indices = [0, 1, 1, 2], values = [5, 7]
// PRINTS: DenseHostTensor dtype = I32, shape = [2, 3], values = [0, 5, 0, 0, 0, 7]
func @tensors() {
  %ch0 = tfrt.new.chain
  %path = "tfrt_test.get_string"() {value = "tests/host/tensors.btf"} : () -> !tfrt.string
  %zero = tfrt.constant.i32 0
  %one = tfrt.constant.i32 1
  %two = tfrt.constant.i32 2
  %a = "btf.read_dense_tensor.f32.2"(%path, %zero) : (!tfrt.string, i32) -> !t.tensor
  %ch1 = tfrt_dht.print_tensor %a, %ch0
  %b = "btf.read_dense_tensor.i8.1"(%path, %one) : (!tfrt.string, i32) -> !t.tensor
  %ch2 = tfrt_dht.print_tensor %b, %ch1
  %c = "btf.read_coo_tensor.i32.2"(%path, %two) : (!tfrt.string, i32) -> !t.tensor
  %ch3 = "coo.print_tensor"(%c, %ch2) : (!t.tensor, !tfrt.chain) -> !tfrt.chain
  %d, %ch4 = coo.convert_coo_to_dht.i32.2 %c, %ch3
  %ch5 = tfrt_dht.print_tensor %d, %ch4
  tfrt.return
}

func @no_such_file() {
  %path = "tfrt_test.get_string"() {value = "tests/host/none.btf"} : () -> !tfrt.string
  %zero = tfrt.constant.i32 0
  // expected-error @+1 {{failed to open file tests/host/none.btf for reading}}
  %a = "btf.read_dense_tensor.f32.2"(%path, %zero) : (!tfrt.string, i32) -> !t.tensor
  tfrt.return
}

func @no_such_tensor() {
  %path = "tfrt_test.get_string"() {value = "tests/host/tensors.btf"} : () -> !tfrt.string
  %index = tfrt.constant.i32 3
  // expected-error @+1 {{which contains 3 tensors}}
  %a = "btf.read_dense_tensor.f32.2"(%path, %index) : (!tfrt.string, i32) -> !t.tensor
  tfrt.return
}

func @other_type() {
  %path = "tfrt_test.get_string"() {value = "tests/host/tensors.btf"} : () -> !tfrt.string
  %zero = tfrt.constant.i32 0
  // expected-error @+1 {{unexpected tensor dtype 4. Expected dtype is 3}}
  %a = "btf.read_dense_tensor.i64.2"(%path, %zero) : (!tfrt.string, i32) -> !t.tensor
  tfrt.return
}

func @other_rank() {
  %path = "tfrt_test.get_string"() {value = "tests/host/tensors.btf"} : () -> !tfrt.string
  %zero = tfrt.constant.i32 0
  // expected-error @+1 {{unexpected tensor rank 2. Expected rank is 1}}
  %a = "btf.read_dense_tensor.f32.1"(%path, %zero) : (!tfrt.string, i32) -> !t.tensor
  tfrt.return
}
