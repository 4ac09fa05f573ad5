// Operations whose regions see their operands: given twice, and as results of one operation.

func @fibonacci() {
  %ch0 = tfrt.new.chain
  %n = tfrt.constant.i32 10
  %one = tfrt.constant.i32 1
  %r:2 = "tfrt.repeat.i32"(%n, %one, %one) ({
  ^bb0(%x: i32, %y: i32):
    %z = tfrt.add.i32 %x, %y
    tfrt.return %y, %z : i32, i32
  }) {bef.nonstrict} : (i32, i32, i32) -> (i32, i32)
  // PRINTS: int32 = 89
  %ch1 = tfrt.print.i32 %r#0, %ch0
  // PRINTS: int32 = 144
  tfrt.print.i32 %r#1, %ch1
  tfrt.return
}

func @two() -> (i32, i32) {
  %a = tfrt.constant.i32 1
  %b = tfrt.constant.i32 2
  tfrt.return %a, %b : i32, i32
}

// PRINTS: 'two' returned 1,2
func @of_one_operation() -> (i32, i32, i32) {
  %x, %y = tfrt.call @two() : () -> (i32, i32)
  %n = tfrt.constant.i32 3
  %r, %s = tfrt.repeat.i32 %n, %x, %y : i32, i32 {
    %z = tfrt.add.i32 %x, %y
    tfrt.return %y, %z : i32, i32
  }
  %t = tfrt.constant.i1 true
  %u = tfrt.if %t, %r, %s : (i32, i32) -> (i32) {
    tfrt.return %r : i32
  } else {
    tfrt.return %s : i32
  }
  tfrt.return %r, %s, %u : i32, i32, i32
}

// PRINTS: 'of_one_operation' returned 5,8,5
func @second_of_several() -> (i32, i32) {
  %n = tfrt.constant.i32 3
  %p:2 = tfrt.call @two() : () -> (i32, i32)
  %r = tfrt.repeat.i32 %n, %p#1 : i32 {
    %q:2 = tfrt.call @two() : () -> (i32, i32)
    %z = tfrt.add.i32 %p#1, %q#1
    tfrt.return %z : i32
  }
  %t = tfrt.constant.i1 false
  %u = "tfrt.if"(%t, %r, %r) ({
  ^bb0(%a: i32, %b: i32):
    tfrt.return %a : i32
  }, {
  ^bb0(%a: i32, %b: i32):
    %c = tfrt.add.i32 %a, %b
    tfrt.return %c : i32
  }) {bef.nonstrict} : (i1, i32, i32) -> (i32)
  tfrt.return %r, %u : i32, i32
}

// PRINTS: 'second_of_several' returned 8,16
func @attributes_of_regions() -> i32 {
  %n = tfrt.constant.i32 2
  %r = tfrt.repeat.i32 %n, %n attributes {a.b = 1 : i32} : i32 {
    %z = tfrt.add.i32 %n, %n
    tfrt.return %z : i32
  }
  tfrt.return %r : i32
}
// PRINTS: 'attributes_of_regions' returned 8

func @doubles(%a: i32, %b: i32) -> i32 {
  %n = tfrt.constant.i32 2
  %r:2 = tfrt.repeat.i32 %n, %a, %b : i32, i32 {
    %z = tfrt.add.i32 %a, %b
    tfrt.return %b, %z : i32, i32
  }
  tfrt.return %r#1 : i32
}

func @called_with_the_same() -> i32 {
  %a = tfrt.constant.i32 1
  %r = tfrt.call @doubles(%a, %a) : (i32, i32) -> i32
  tfrt.return %r : i32
}
// PRINTS: 'called_with_the_same' returned 3
