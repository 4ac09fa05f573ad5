// Fibonacci numbers by recursion: what the example `fib` runs, as `fib.bef`.
func @fib(%n: i32) -> i32 {
  %one = tfrt.constant.i32 1
  %is_small = "tfrt.lessequal.i32"(%n, %one) : (i32, i32) -> i1
  %f = tfrt.if %is_small, %n : (i32) -> (i32) {
    tfrt.return %n : i32
  } else {
    %one_ = tfrt.constant.i32 1
    %two = tfrt.constant.i32 2
    %a = "tfrt.minus.i32"(%n, %one_) : (i32, i32) -> i32
    %b = "tfrt.minus.i32"(%n, %two) : (i32, i32) -> i32
    %fa = tfrt.call @fib(%a) : (i32) -> (i32)
    %fb = tfrt.call @fib(%b) : (i32) -> (i32)
    %sum = tfrt.add.i32 %fa, %fb
    tfrt.return %sum : i32
  }
  tfrt.return %f : i32
}
