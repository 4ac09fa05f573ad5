func @numbers() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %two = tfrt.constant.i32 2
  %a = "my.scale"(%two) {factor = 21 : i32} : (i32) -> i32
  %b = "my.add_later"(%a) : (i32) -> i32
  %ch1 = tfrt.print.i32 %b, %ch0
  tfrt.return %ch1 : !tfrt.chain
}

func @count() {
  %ch0 = tfrt.new.chain
  %ch1 = "my.print_count"(%ch0) : (!tfrt.chain) -> !tfrt.chain
  tfrt.return
}

func @texts() {
  %ch0 = tfrt.new.chain
  %t, %s = "my.describe"() {numbers = [1.5 : f64, 2.0 : f64], a_text = "héllo"} : () -> (!tfrt.string, f64)
  %ch1 = "my.print_text"(%t, %ch0) : (!tfrt.string, !tfrt.chain) -> !tfrt.chain
  %ch2 = tfrt.print.f64 %s, %ch1
  tfrt.return
}

func @tensors() {
  %ch0 = tfrt.new.chain
  %t = "tfrt_dht.create_uninitialized_tensor.f32.2"() {shape = [2 : i64, 2 : i64]} : () -> !t.tensor
  %ch1 = "tfrt_dht.set_tensor_with_constant_values.f32"(%t, %ch0) {values = [1.0 : f32, 2.0 : f32, 3.0 : f32, 4.0 : f32]} : (!t.tensor, !tfrt.chain) -> !tfrt.chain
  %r = "my.reverse"(%t, %ch1) : (!t.tensor, !tfrt.chain) -> !t.tensor
  %ch2 = "tfrt_dht.print_tensor"(%r, %ch1) : (!t.tensor, !tfrt.chain) -> !tfrt.chain
  tfrt.return
}

func @objects() {
  %ch0 = tfrt.new.chain
  %c = "my.new_counter"() : () -> !my.counter
  %n1 = "my.next"(%c) : (!my.counter) -> i32
  %same = "my.pass_on"(%c) : (!my.counter) -> !my.counter
  %n2 = "my.next"(%same) : (!my.counter) -> i32
  %s = tfrt.add.i32 %n1, %n2
  %ch1 = tfrt.print.i32 %s, %ch0
  %n = "my.live_counters"(%s) : (i32) -> i32
  %ch2 = tfrt.print.i32 %n, %ch1
  tfrt.return
}

func @settled_inside() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %t = "tfrt_dht.create_uninitialized_tensor.f32.2"() {shape = [2 : i64, 3 : i64]} : () -> !t.tensor
  %n = "my.count_elements"(%t, %ch0) : (!t.tensor, !tfrt.chain) -> i32
  %ch1 = tfrt.print.i32 %n, %ch0
  %ch2 = "tfrt_dht.fill_tensor_with_constant.f32"(%t, %ch1) {value = 1.0 : f32} : (!t.tensor, !tfrt.chain) -> !tfrt.chain
  tfrt.return %ch2 : !tfrt.chain
}
