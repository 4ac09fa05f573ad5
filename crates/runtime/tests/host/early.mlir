// Kernels that are not strict ask for values before they are available; others read the same ones. QUEUES: s
// INLINED: prints in another order.

func @prints(%x: i32, %y: i32, %z: i32) -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %ch1 = tfrt.print.i32 %x, %ch0
  %ch2 = tfrt.print.i32 %y, %ch1
  %ch3 = tfrt.print.i32 %z, %ch2
  tfrt.return %ch0 : !tfrt.chain
}

// PRINTS: int32 = 1
// PRINTS: int32 = 9
// PRINTS: int32 = 2
// PRINTS: int32 = 3
func @called_before_its_arguments() {
  %one = tfrt.constant.i32 1
  %two = "tfrt_test.async_add.i32"(%one, %one) : (i32, i32) -> i32
  %three = "tfrt_test.async_add.i32"(%one, %two) : (i32, i32) -> i32
  %ch = tfrt.call @prints(%one, %two, %three) : (i32, i32, i32) -> (!tfrt.chain)
  %nine = tfrt.constant.i32 9
  tfrt.print.i32 %nine, %ch
  tfrt.return
}

// PRINTS: int32 = 7
// PRINTS: 'asked_for_by_two' returned 14,!tfrt.chain value
func @asked_for_by_two() -> (i32, !tfrt.chain) {
  %ch = tfrt.new.chain
  %first = "tfrt_test.async_constant.i32"() {value = 3 : i32} : () -> i32
  %late = "tfrt_test.async_constant.i32"() {value = 7 : i32} : () -> i32
  %same = tfrt.call @second(%first, %late) : (i32, i32) -> (i32)
  %printed = tfrt.print.i32 %late, %ch
  %sum = tfrt.add.i32 %same, %late
  tfrt.return %sum, %printed : i32, !tfrt.chain
}

func @second(%x: i32, %y: i32) -> i32 {
  tfrt.return %y : i32
}
