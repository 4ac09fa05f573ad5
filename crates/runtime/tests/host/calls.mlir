// Calls of functions for ranges of numbers, of functions with unread arguments, and functions that
// belong to another compiler.
// LOSES: a module that no kernel refers to.

module @other attributes {tfrt.compiled} {
  func @main(%x: memref<?xf32>) {
    return
  }
}

func @count(%first: i32, %end: i32, %counter: !test.atomic.i32) -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %ch1 = "tfrt_test.atomic.inc.i32"(%counter, %ch0) : (!test.atomic.i32, !tfrt.chain) -> !tfrt.chain
  tfrt.return %ch1 : !tfrt.chain
}

// Ten numbers in blocks of three are four calls.
// PRINTS: int32 = 4
// PRINTS: 'ranges' returned !tfrt.chain value
func @ranges() -> !tfrt.chain {
  %zero = tfrt.constant.i32 0
  %ten = tfrt.constant.i32 10
  %three = tfrt.constant.i32 3
  %ch0 = tfrt.new.chain
  %counter = "tfrt_test.atomic.create.i32"() : () -> !test.atomic.i32
  %done = tfrt.parallel_call.i32 %zero to %ten fixed %three @count(%counter) : !test.atomic.i32
  %n, %ch1 = "tfrt_test.atomic.get.i32"(%counter, %done) : (!test.atomic.i32, !tfrt.chain) -> (i32, !tfrt.chain)
  %ch2 = tfrt.print.i32 %n, %ch1
  tfrt.return %ch2 : !tfrt.chain
}

func @first(%x: i32, %y: i32) -> i32 {
  tfrt.return %x : i32
}

// What comes late, or never well, and is not read does no harm.
// PRINTS: 'unread' returned 5,7
func @unread() -> (i32, i32) {
  %five = tfrt.constant.i32 5
  %seven = tfrt.constant.i32 7
  %late = "tfrt_test.async_add.i32"(%five, %five) : (i32, i32) -> i32
  %a = tfrt.call @first(%five, %late) : (i32, i32) -> (i32)
  // expected-error @+1 {{something bad happened}}
  %bad = "tfrt_test.fail"() : () -> i32
  %b = "tfrt.call"(%seven, %bad) {bef.nonstrict, callee = @first} : (i32, i32) -> (i32)
  tfrt.return %a, %b : i32, i32
}

func @plus(%x: i32, %y: i32) -> i32 {
  %z = tfrt.add.i32 %x, %y
  tfrt.return %z : i32
}

// Calls in a row, each of which could start with its second argument alone, and conditionals.
// PRINTS: 'in_a_row' returned 5,9,<<error: something bad happened>>
func @in_a_row() -> (i32, i32, i32) {
  %one = tfrt.constant.i32 1
  %yes = tfrt.constant.i1 1
  %a = tfrt.call @plus(%one, %one) : (i32, i32) -> (i32)
  %b = tfrt.call @plus(%a, %one) : (i32, i32) -> (i32)
  %c = tfrt.call @plus(%b, %a) : (i32, i32) -> (i32)
  %late = "tfrt_test.async_add.i32"(%c, %a) : (i32, i32) -> i32
  %d = tfrt.call @plus(%late, %one) : (i32, i32) -> (i32)
  %e = tfrt.if %yes, %d, %one : (i32, i32) -> (i32) {
    %y = tfrt.add.i32 %d, %one
    tfrt.return %y : i32
  } else {
    tfrt.return %one : i32
  }
  // expected-error @+1 {{something bad happened}}
  %bad = "tfrt_test.fail"() : () -> i32
  %f = tfrt.call @plus(%bad, %one) : (i32, i32) -> (i32)
  tfrt.return %c, %e, %f : i32, i32, i32
}
