// Loops that would use up the stack if an iteration stood on the one before. SLOW

// PRINTS: 'plain' returned 300000
func @plain() -> i32 {
  %n = tfrt.constant.i32 300000
  %zero = tfrt.constant.i32 0
  %sum = tfrt.repeat.i32 %n, %zero : i32 {
    %one = tfrt.constant.i32 1
    %next = tfrt.add.i32 %zero, %one
    tfrt.return %next : i32
  }
  tfrt.return %sum : i32
}

func @deeper(%n: i32) -> i32 {
  %one = tfrt.constant.i32 1
  %done = "tfrt.lessequal.i32"(%n, %one) : (i32, i32) -> i1
  %res = tfrt.if %done, %n : (i32) -> (i32) {
    tfrt.return %n : i32
  } else {
    %minus = tfrt.constant.i32 -1
    %m = tfrt.add.i32 %n, %minus
    %r = tfrt.call @deeper(%m) : (i32) -> i32
    tfrt.return %r : i32
  }
  tfrt.return %res : i32
}

// PRINTS: 'deep_recursion' returned 1
func @deep_recursion() -> i32 {
  %n = tfrt.constant.i32 50000
  %r = tfrt.call @deeper(%n) : (i32) -> i32
  tfrt.return %r : i32
}
