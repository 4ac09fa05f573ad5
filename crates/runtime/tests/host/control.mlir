// Calls, branches, loops and recursion. QUEUES: all

func @double(%x: i32) -> i32 {
  %y = tfrt.add.i32 %x, %x
  tfrt.return %y : i32
}

func @fib(%n: i32) -> i32 {
  %one = tfrt.constant.i32 1
  %small = "tfrt.lessequal.i32"(%n, %one) : (i32, i32) -> i1
  %res = tfrt.if %small, %n : (i32) -> (i32) {
    tfrt.return %n : i32
  } else {
    %minus = tfrt.constant.i32 -1
    %a = tfrt.add.i32 %n, %minus
    %b = tfrt.add.i32 %a, %minus
    %fa = tfrt.call @fib(%a) : (i32) -> i32
    %fb = tfrt.call @fib(%b) : (i32) -> i32
    %sum = tfrt.add.i32 %fa, %fb
    tfrt.return %sum : i32
  }
  tfrt.return %res : i32
}

// PRINTS: 'recursion' returned 610
func @recursion() -> i32 {
  %n = tfrt.constant.i32 15
  %f = tfrt.call @fib(%n) : (i32) -> i32
  tfrt.return %f : i32
}

// PRINTS: int32 = 3
// PRINTS: int32 = 6
// PRINTS: int32 = 12
// PRINTS: int32 = 24
// PRINTS: 'loop' returned !tfrt.chain value,48
func @loop() -> (!tfrt.chain, i32) {
  %n = tfrt.constant.i32 4
  %x = tfrt.constant.i32 3
  %ch = tfrt.new.chain
  %res:2 = tfrt.repeat.i32 %n, %ch, %x : !tfrt.chain, i32 {
    %next = tfrt.print.i32 %x, %ch
    %y = tfrt.call @double(%x) : (i32) -> i32
    tfrt.return %next, %y : !tfrt.chain, i32
  }
  tfrt.return %res#0, %res#1 : !tfrt.chain, i32
}

// PRINTS: 'count_down' returned 0
func @count_down() -> i32 {
  %true = tfrt.constant.i1 true
  %n = tfrt.constant.i32 1000
  %left = tfrt.while %true @count_body(%n) parallel_iterations(1) : (i32) -> (i32)
  tfrt.return %left : i32
}

func @count_body(%n: i32) -> (i32, i1) {
  %minus = tfrt.constant.i32 -1
  %one = tfrt.constant.i32 1
  %m = tfrt.add.i32 %n, %minus
  %more = "tfrt.lessequal.i32"(%one, %m) : (i32, i32) -> i1
  tfrt.return %m, %more : i32, i1
}

// PRINTS: 'chosen' returned 20,10
func @chosen() -> (i32, i32) {
  %ten = tfrt.constant.i32 10
  %yes = tfrt.constant.i1 true
  %no = "tfrt_test.async_constant.i1"() {value = false} : () -> i1
  %a = tfrt.cond %yes @double @same(%ten) : (i32) -> (i32)
  %b = tfrt.cond %no @double @same(%ten) : (i32) -> (i32)
  tfrt.return %a, %b : i32, i32
}

func @same(%x: i32) -> i32 {
  tfrt.return %x : i32
}

// PRINTS: 'gone_wrong' returned <<error: Divide by zero>>,5
func @gone_wrong() -> (i32, i32) {
  %five = tfrt.constant.i32 5
  %zero = tfrt.constant.i32 0
  // expected-error @+1 {{runtime error: Divide by zero}}
  %quotient, %rest = tfrt.div.i32 %five, %zero
  %more = tfrt.add.i32 %quotient, %five
  tfrt.return %more, %five : i32, i32
}

// Only one iteration at a time may be in progress, though the condition is always known.
// PRINTS: 'one_at_a_time' returned 8
func @one_at_a_time() -> i32 {
  %true = tfrt.constant.i1 true
  %zero = tfrt.constant.i32 0
  %n = tfrt.while %true @async_body(%zero) parallel_iterations(1) : (i32) -> (i32)
  tfrt.return %n : i32
}

func @async_body(%n: i32) -> (i32, i1) {
  %one = tfrt.constant.i32 1
  %seven = tfrt.constant.i32 7
  %m = "tfrt_test.async_add.i32"(%n, %one) : (i32, i32) -> i32
  %more = "tfrt.lessequal.i32"(%m, %seven) : (i32, i32) -> i1
  tfrt.return %m, %more : i32, i1
}

// PRINTS: 'twice_once' returned 6,6
func @twice_once() -> (i32, i32) {
  %three = tfrt.constant.i32 3
  %a = tfrt.once @late_double(%three) : (i32) -> (i32)
  // Waits for the first call: the order of independent calls is not defined.
  %b = tfrt.once @late_double(%a) : (i32) -> (i32)
  tfrt.return %a, %b : i32, i32
}

func @late_double(%x: i32) -> i32 {
  %y = "tfrt_test.async_add.i32"(%x, %x) : (i32, i32) -> i32
  tfrt.return %y : i32
}

// PRINTS: 'once_in_itself' returned <<error: @of_itself returns what it is to return>>
func @once_in_itself() -> i32 {
  %three = tfrt.constant.i32 3
  %a = tfrt.once @of_itself(%three) : (i32) -> (i32)
  tfrt.return %a : i32
}

func @of_itself(%x: i32) -> i32 {
  %a = tfrt.once @of_itself(%x) : (i32) -> (i32)
  tfrt.return %a : i32
}
