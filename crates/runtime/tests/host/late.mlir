// Values that come later, through kernels and control flow.

// PRINTS: 'chain_of_late_values' returned 7
func @chain_of_late_values() -> i32 {
  %one = tfrt.constant.i32 1
  %two = "tfrt_test.async_add.i32"(%one, %one) : (i32, i32) -> i32
  %four = "tfrt_test.async_add.i32"(%two, %two) : (i32, i32) -> i32
  %six = tfrt.add.i32 %four, %two
  %seven = "tfrt_test.async_add.i32"(%six, %one) : (i32, i32) -> i32
  tfrt.return %seven : i32
}

// PRINTS: 'late_loop' returned 5000
func @late_loop() -> i32 {
  %n = tfrt.constant.i32 5000
  %zero = tfrt.constant.i32 0
  %sum = tfrt.repeat.i32 %n, %zero : i32 {
    %one = tfrt.constant.i32 1
    %next = "tfrt_test.async_add.i32"(%zero, %one) : (i32, i32) -> i32
    tfrt.return %next : i32
  }
  tfrt.return %sum : i32
}

// PRINTS: int32 = 45
// PRINTS: 'blocks' returned !tfrt.chain value
func @blocks() -> !tfrt.chain {
  %start = tfrt.constant.i32 0
  %end = tfrt.constant.i32 10
  %size = tfrt.constant.i32 1
  %sum = "tfrt_test.atomic.create.i32"() : () -> !test.atomic.i32
  %done = tfrt.parallel_for.i32 %start to %end fixed %size, %sum : !test.atomic.i32 {
    %ch = tfrt.new.chain
    %added = "tfrt_test.atomic.add.i32"(%sum, %start, %ch) : (!test.atomic.i32, i32, !tfrt.chain) -> !tfrt.chain
    tfrt.return %added : !tfrt.chain
  }
  %n, %got = "tfrt_test.atomic.get.i32"(%sum, %done) : (!test.atomic.i32, !tfrt.chain) -> (i32, !tfrt.chain)
  %printed = tfrt.print.i32 %n, %got
  tfrt.return %printed : !tfrt.chain
}

// PRINTS: 'asynchronous_body' returned 9
func @asynchronous_body() -> i32 {
  %four = tfrt.constant.i32 4
  %five = tfrt.constant.i32 5
  %nine = tfrt_test.do.async %four, %five : (i32, i32) -> (i32) {
    %sum = tfrt.add.i32 %four, %five
    tfrt.return %sum : i32
  }
  tfrt.return %nine : i32
}
