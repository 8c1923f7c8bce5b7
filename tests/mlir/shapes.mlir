// Reshapes, slices, pads and layouts.
module {
  func.func @collapse_and_back(%a: tensor<2x3x4xf32>) -> tensor<3x8xf32> {
    %0 = tensor.collapse_shape %a [[0, 1, 2]] : tensor<2x3x4xf32> into tensor<24xf32>
    %1 = tensor.expand_shape %0 [[0, 1]] output_shape [3, 8] : tensor<24xf32> into tensor<3x8xf32>
    %2 = tensor.empty() : tensor<3x8xf32>
    %3 = linalg.exp ins(%1 : tensor<3x8xf32>) outs(%2 : tensor<3x8xf32>) -> tensor<3x8xf32>
    return %3 : tensor<3x8xf32>
  }

  // the old syntax, with no output shape; only the result is reshaped
  func.func @expanded_result(%a: tensor<24xf32>) -> tensor<1x4x6x1xf32> {
    %0 = tensor.empty() : tensor<24xf32>
    %1 = linalg.add ins(%a, %a : tensor<24xf32>, tensor<24xf32>) outs(%0 : tensor<24xf32>) -> tensor<24xf32>
    %2 = tensor.expand_shape %1 [[0, 1, 2, 3]] : tensor<24xf32> into tensor<1x4x6x1xf32>
    return %2 : tensor<1x4x6x1xf32>
  }

  func.func @dynamic(%a: tensor<?x4xf32>) -> tensor<?x2x4xf32> {
    %c0 = arith.constant 0 : index
    %c4 = arith.constant 4 : index
    %n = tensor.dim %a, %c0 : tensor<?x4xf32>
    %0 = tensor.collapse_shape %a [[0, 1]] : tensor<?x4xf32> into tensor<?xf32>
    %all = arith.muli %n, %c4 : index
    %1 = tensor.empty(%all) : tensor<?xf32>
    %2 = linalg.negf ins(%0 : tensor<?xf32>) outs(%1 : tensor<?xf32>) -> tensor<?xf32>
    %c2 = arith.constant 2 : index
    %half = arith.divui %n, %c2 : index
    %3 = tensor.expand_shape %2 [[0, 1, 2]] output_shape [%half, 2, 4] : tensor<?xf32> into tensor<?x2x4xf32>
    return %3 : tensor<?x2x4xf32>
  }

  func.func @transposed(%a: tensor<2x3x4xf32>, %b: tensor<3xf32>) -> tensor<4x2x3xf32> {
    %0 = tensor.empty() : tensor<4x2x3xf32>
    %1 = linalg.transpose ins(%a : tensor<2x3x4xf32>) outs(%0 : tensor<4x2x3xf32>) permutation = [2, 0, 1]
    %2 = linalg.broadcast ins(%b : tensor<3xf32>) outs(%0 : tensor<4x2x3xf32>) dimensions = [0, 1]
    %3 = arith.mulf %1, %2 : tensor<4x2x3xf32>
    return %3 : tensor<4x2x3xf32>
  }

  func.func @slices(%a: tensor<8x9xf32>) -> (tensor<3x2xf32>, tensor<9xf32>, tensor<1x4xf32>) {
    %0 = tensor.extract_slice %a[1, 2] [3, 2] [2, 3] : tensor<8x9xf32> to tensor<3x2xf32>
    %1 = tensor.extract_slice %a[7, 0] [1, 9] [1, 1] : tensor<8x9xf32> to tensor<9xf32>
    %o = arith.constant 6 : index
    %2 = tensor.extract_slice %a[%o, 5] [1, 4] [1, 1] : tensor<8x9xf32> to tensor<1x4xf32>
    return %0, %1, %2 : tensor<3x2xf32>, tensor<9xf32>, tensor<1x4xf32>
  }

  func.func @inserted(%a: tensor<8x9xf32>, %b: tensor<3x2xf32>, %c: tensor<9xf32>) -> tensor<8x9xf32> {
    %0 = tensor.insert_slice %b into %a[1, 2] [3, 2] [2, 3] : tensor<3x2xf32> into tensor<8x9xf32>
    %1 = tensor.insert_slice %c into %0[4, 0] [1, 9] [1, 1] : tensor<9xf32> into tensor<8x9xf32>
    return %1 : tensor<8x9xf32>
  }

  // %0 is read again after something was written into a copy of it
  func.func @inserted_twice(%a: tensor<4xf32>, %b: tensor<2xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %e = tensor.empty() : tensor<4xf32>
    %0 = linalg.add ins(%a, %a : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
    %1 = tensor.insert_slice %b into %0[1] [2] [1] : tensor<2xf32> into tensor<4xf32>
    %2 = linalg.sub ins(%0, %1 : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
    return %1, %2 : tensor<4xf32>, tensor<4xf32>
  }

  func.func @padded(%a: tensor<3x4xf32>) -> tensor<6x4xf32> {
    %cst = arith.constant 2.5 : f32
    %0 = tensor.pad %a low[1, 0] high[2, 0] {
    ^bb0(%i: index, %j: index):
      tensor.yield %cst : f32
    } : tensor<3x4xf32> to tensor<6x4xf32>
    return %0 : tensor<6x4xf32>
  }

  // 51 and 49 elements, read as 10 x 10
  func.func @joined(%a: tensor<51xf32>, %b: tensor<49xf32>) -> tensor<10xf32> {
    %0 = tensor.concat dim(0) %a, %b : (tensor<51xf32>, tensor<49xf32>) -> tensor<100xf32>
    %1 = tensor.expand_shape %0 [[0, 1]] output_shape [10, 10] : tensor<100xf32> into tensor<10x10xf32>
    %cst = arith.constant 0.0 : f32
    %2 = tensor.empty() : tensor<10xf32>
    %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<10xf32>) -> tensor<10xf32>
    %4 = linalg.reduce { arith.addf } ins(%1 : tensor<10x10xf32>) outs(%3 : tensor<10xf32>) dimensions = [1]
    return %4 : tensor<10xf32>
  }

  func.func @packed_with_padding(%a: tensor<5x7xf32>) -> tensor<4x2x2x3xf32> {
    %cst = arith.constant -1.0 : f32
    %0 = tensor.empty() : tensor<4x2x2x3xf32>
    %pack = linalg.pack %a padding_value(%cst : f32) outer_dims_perm = [1, 0] inner_dims_pos = [1, 0] inner_tiles = [2, 3] into %0 : tensor<5x7xf32> -> tensor<4x2x2x3xf32>
    return %pack : tensor<4x2x2x3xf32>
  }

  func.func @unpacked_in_part(%a: tensor<4x2x2x3xf32>) -> tensor<5x7xf32> {
    %0 = tensor.empty() : tensor<5x7xf32>
    %1 = linalg.unpack %a outer_dims_perm = [1, 0] inner_dims_pos = [1, 0] inner_tiles = [2, 3] into %0 : tensor<4x2x2x3xf32> -> tensor<5x7xf32>
    return %1 : tensor<5x7xf32>
  }

  func.func @there_and_back(%a: tensor<6x8xf32>) -> tensor<6x8xf32> {
    %0 = tensor.empty() : tensor<2x3x4x2xf32>
    %1 = tensor.empty() : tensor<6x8xf32>
    %pack = tensor.pack %a outer_dims_perm = [1, 0] inner_dims_pos = [1, 0] inner_tiles = [4, 2] into %0 : tensor<6x8xf32> -> tensor<2x3x4x2xf32>
    %2 = linalg.square ins(%pack : tensor<2x3x4x2xf32>) outs(%0 : tensor<2x3x4x2xf32>) -> tensor<2x3x4x2xf32>
    %unpack = tensor.unpack %2 outer_dims_perm = [1, 0] inner_dims_pos = [1, 0] inner_tiles = [4, 2] into %1 : tensor<2x3x4x2xf32> -> tensor<6x8xf32>
    return %unpack : tensor<6x8xf32>
  }

  // a result twice, an argument as a result, a scalar
  func.func @returned(%a: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, f32) {
    %c1 = arith.constant 1 : index
    %e = tensor.empty() : tensor<3xf32>
    %0 = linalg.add ins(%a, %a : tensor<3xf32>, tensor<3xf32>) outs(%e : tensor<3xf32>) -> tensor<3xf32>
    %1 = tensor.extract %0[%c1] : tensor<3xf32>
    return %0, %0, %a, %1 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, f32
  }

  func.func @made(%x: f32, %n: index) -> (tensor<2x3xf32>, tensor<3xf32>, tensor<?x2xi64>) {
    %c2 = arith.constant 2.0 : f32
    %y = arith.mulf %x, %c2 : f32
    %0 = tensor.splat %x : tensor<2x3xf32>
    %1 = tensor.from_elements %x, %y, %c2 : tensor<3xf32>
    %2 = tensor.generate %n {
    ^bb0(%i: index, %j: index):
      %c10 = arith.constant 10 : index
      %s = arith.muli %i, %c10 : index
      %t = arith.addi %s, %j : index
      %v = arith.index_cast %t : index to i64
      tensor.yield %v : i64
    } : tensor<?x2xi64>
    return %0, %1, %2 : tensor<2x3xf32>, tensor<3xf32>, tensor<?x2xi64>
  }

  func.func @constants() -> (tensor<2x3xi32>, tensor<4xf32>, tensor<3xi1>, tensor<2xi8>) {
    %a = arith.constant dense<[[1, -2, 3], [4, 5, 5]]> : tensor<2x3xi32>
    %b = arith.constant dense<[0xFF800000, 1.5, 0x7F800000, -0.25]> : tensor<4xf32>
    %c = arith.constant dense<[true, false, true]> : tensor<3xi1>
    %d = arith.constant dense<[255, -128]> : tensor<2xi8>
    return %a, %b, %c, %d : tensor<2x3xi32>, tensor<4xf32>, tensor<3xi1>, tensor<2xi8>
  }

  func.func @empty(%x: tensor<0x8xf32>, %w: tensor<4x8xf32>) -> tensor<0x4xf32> {
    %cst = arith.constant 0.0 : f32
    %0 = tensor.empty() : tensor<0x4xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<0x4xf32>) -> tensor<0x4xf32>
    %2 = linalg.matmul_transpose_b ins(%x, %w : tensor<0x8xf32>, tensor<4x8xf32>) outs(%1 : tensor<0x4xf32>) -> tensor<0x4xf32>
    return %2 : tensor<0x4xf32>
  }
}
