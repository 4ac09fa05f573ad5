func @wrong_argument() {
  %x = tfrt.constant.f32 2.0
  // expected-error @+1 {{argument 0 is a f32, kernel expects a i32}}
  %a = "my.scale"(%x) {factor = 21 : i32} : (f32) -> i32
  tfrt.return
}

func @wrong_attribute() {
  %x = tfrt.constant.i32 2
  // expected-error @+1 {{an attribute is f32, kernel expects i32}}
  %a = "my.scale"(%x) {factor = 21.0 : f32} : (i32) -> i32
  tfrt.return
}

func @no_attribute() {
  %x = tfrt.constant.i32 2
  // expected-error @+1 {{kernel has no attribute 0}}
  %a = "my.scale"(%x) : (i32) -> i32
  tfrt.return
}

func @wrong_array() {
  // expected-error @+1 {{an attribute is an array of f32, kernel expects an array of f64}}
  %t, %s = "my.describe"() {numbers = [1.5 : f32], a_text = "hello"} : () -> (!tfrt.string, f64)
  tfrt.return
}

func @no_tensor() {
  %x = tfrt.constant.i32 2
  // expected-error @+1 {{argument 0 is a i32, kernel expects a HostTensor}}
  %r = "my.reverse"(%x) : (i32) -> !t.tensor
  tfrt.return
}

func @other_object() {
  %c = "my.new_counter"() : () -> !my.counter
  // expected-error @+1 {{argument 0 is a counter, kernel expects a other}}
  %n = "my.next_of_other"(%c) : (!my.counter) -> i32
  tfrt.return
}

func @later() -> i32 {
  %x = tfrt.constant.i32 -1
  // expected-error @+1 {{too small, said later}}
  %a = "my.add_later"(%x) : (i32) -> i32
  tfrt.return %a : i32
}

func @refuses() -> i32 {
  // expected-error @+1 {{no such luck}}
  %a = "my.refuse"() : () -> i32
  tfrt.return %a : i32
}

func @sync_kernels() -> i32 attributes {tfrt.sync} {
  %x = tfrt.constant_s.i32 6
  %a = "my.scale_s"(%x) {factor = 7 : i32} : (i32) -> i32
  tfrt.return %a : i32
}

func @sync_later() -> i32 attributes {tfrt.sync} {
  %x = tfrt.constant_s.i32 1
  // expected-error @+1 {{a kernel of a synchronous function cannot have asynchronous results}}
  %a = "my.add_later_s"(%x) : (i32) -> i32
  tfrt.return %a : i32
}

func @too_many() {
  // expected-error @+1 {{kernel has 0 results, none at index 7}}
  "my.set_too_many"() : () -> ()
  tfrt.return
}

func @null_text() -> !tfrt.string {
  // expected-error @+1 {{a library passes 5 elements with a null pointer}}
  %x = "my.null_text"() : () -> !tfrt.string
  tfrt.return %x : !tfrt.string
}

func @null_dims() -> !t.tensor {
  // expected-error @+1 {{a library passes 2 elements with a null pointer}}
  %x = "my.null_dims"() : () -> !t.tensor
  tfrt.return %x : !t.tensor
}
