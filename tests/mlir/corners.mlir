// Maps and integers where others went wrong; the right values were worked out by hand.
module {
  // (d - 3) floordiv 4 + 1 for d = 0..7, the remainder of negative numbers, and a reversed copy
  func.func @floors(%a: tensor<3xf32>, %b: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xi64>) {
    %e = tensor.empty() : tensor<8xf32>
    %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> ((d0 - 3) floordiv 4 + 1)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a : tensor<3xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%x: f32, %o: f32):
      linalg.yield %x : f32
    } -> tensor<8xf32>
    %1 = linalg.generic {indexing_maps = [affine_map<(d0) -> (7 - d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%b : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%x: f32, %o: f32):
      linalg.yield %x : f32
    } -> tensor<8xf32>
    %i = tensor.empty() : tensor<8xi64>
    %2 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} outs(%i : tensor<8xi64>) {
    ^bb0(%o: i64):
      %d = linalg.index 0 : index
      %c = arith.constant -10 : index
      %s = arith.addi %d, %c : index
      %five = arith.constant 5 : index
      %q = arith.floordivsi %s, %five : index
      %t = arith.muli %q, %five : index
      %r = arith.subi %s, %t : index
      %v = arith.index_cast %r : index to i64
      linalg.yield %v : i64
    } -> tensor<8xi64>
    return %0, %1, %2 : tensor<8xf32>, tensor<8xf32>, tensor<8xi64>
  }

  func.func @diagonal(%a: tensor<4x4xf32>, %b: tensor<1x4xf32>) -> (tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
    %e = tensor.empty() : tensor<4xf32>
    %f = tensor.empty() : tensor<4x4xf32>
    %zero = arith.constant 0.0 : f32
    %z = linalg.fill ins(%zero : f32) outs(%f : tensor<4x4xf32>) -> tensor<4x4xf32>
    %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0, d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a : tensor<4x4xf32>) outs(%e : tensor<4xf32>) {
    ^bb0(%x: f32, %o: f32):
      linalg.yield %x : f32
    } -> tensor<4xf32>
    %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%b : tensor<1x4xf32>) outs(%f : tensor<4x4xf32>) {
    ^bb0(%x: f32, %o: f32):
      linalg.yield %x : f32
    } -> tensor<4x4xf32>
    %2 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0, d0)>], iterator_types = ["parallel"]} ins(%0 : tensor<4xf32>) outs(%z : tensor<4x4xf32>) {
    ^bb0(%x: f32, %o: f32):
      linalg.yield %x : f32
    } -> tensor<4x4xf32>
    return %0, %1, %2 : tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }

  // 64 codes a row, 40 of them in use; scales of 32 codes each
  func.func @row_tails(%codes: tensor<2x64xi4>, %scales: tensor<2x2xf32>, %x: tensor<40xf32>) -> tensor<2xf32> {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<2xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2xf32>) -> tensor<2xf32>
    %used = tensor.extract_slice %codes[0, 0] [2, 40] [1, 1] : tensor<2x64xi4> to tensor<2x40xi4>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1 floordiv 32)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%used, %scales, %x : tensor<2x40xi4>, tensor<2x2xf32>, tensor<40xf32>) outs(%z : tensor<2xf32>) {
    ^bb0(%c: i4, %s: f32, %v: f32, %o: f32):
      %q = arith.uitofp %c : i4 to f32
      %w = arith.mulf %q, %s : f32
      %p = arith.mulf %w, %v : f32
      %y = arith.addf %o, %p : f32
      linalg.yield %y : f32
    } -> tensor<2xf32>
    return %r : tensor<2xf32>
  }

  // rows of five codes: three bytes each
  func.func @odd_rows(%codes: tensor<3x5xi4>) -> tensor<3xi32> {
    %zero = arith.constant 0 : i32
    %e = tensor.empty() : tensor<3xi32>
    %z = linalg.fill ins(%zero : i32) outs(%e : tensor<3xi32>) -> tensor<3xi32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%codes : tensor<3x5xi4>) outs(%z : tensor<3xi32>) {
    ^bb0(%c: i4, %o: i32):
      %q = arith.extui %c : i4 to i32
      %y = arith.addi %o, %q : i32
      linalg.yield %y : i32
    } -> tensor<3xi32>
    return %r : tensor<3xi32>
  }

  // a reduction of extent 1 still combines with what it starts from
  func.func @unit_reduction(%a: tensor<3x1xf32>) -> tensor<3xf32> {
    %two = arith.constant 2.0 : f32
    %e = tensor.empty() : tensor<3xf32>
    %z = linalg.fill ins(%two : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>
    %r = linalg.reduce { arith.addf } ins(%a : tensor<3x1xf32>) outs(%z : tensor<3xf32>) dimensions = [1]
    return %r : tensor<3xf32>
  }

  // sums in f16, of which ones alone reach 2048 and stay there
  func.func @halves(%a: tensor<1x3000xf16>) -> tensor<1xf16> {
    %zero = arith.constant 0.0 : f16
    %e = tensor.empty() : tensor<1xf16>
    %z = linalg.fill ins(%zero : f16) outs(%e : tensor<1xf16>) -> tensor<1xf16>
    %r = linalg.reduce { arith.addf } ins(%a : tensor<1x3000xf16>) outs(%z : tensor<1xf16>) dimensions = [1]
    return %r : tensor<1xf16>
  }

  // the one is read before the other is written, and written where the other was read
  func.func @swapped(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %0 = arith.addf %a, %b : tensor<4xf32>
    %1 = tensor.extract_slice %0[2] [2] [1] : tensor<4xf32> to tensor<2xf32>
    %2 = tensor.extract_slice %0[0] [2] [1] : tensor<4xf32> to tensor<2xf32>
    %3 = tensor.insert_slice %1 into %0[0] [2] [1] : tensor<2xf32> into tensor<4xf32>
    %4 = tensor.insert_slice %2 into %3[2] [2] [1] : tensor<2xf32> into tensor<4xf32>
    return %4, %0 : tensor<4xf32>, tensor<4xf32>
  }
}
