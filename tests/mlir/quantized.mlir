// Matrices of small integers with scales and zero points a group, in the ways that models write them.
#id3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#group = affine_map<(d0, d1, d2) -> (d0, d1)>
#unit = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
#x5 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d3, d4)>
#w5 = affine_map<(d0, d1, d2, d3, d4) -> (d2, d3, d4)>
#y5 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2)>
module {
  func.func @layer(%codes: tensor<6x3x4xi8>, %x: tensor<1x2x3x4xf32>, %scales: tensor<6x3xf32>, %zeros: tensor<6x3xf32>) -> tensor<1x2x6xf32> {
    %cst = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<1x2x6xf32>
    %1 = tensor.empty() : tensor<6x3x4xf32>
    %2 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x2x6xf32>) -> tensor<1x2x6xf32>
    %3 = linalg.generic {indexing_maps = [#id3, #group, #group, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%codes, %scales, %zeros : tensor<6x3x4xi8>, tensor<6x3xf32>, tensor<6x3xf32>) outs(%1 : tensor<6x3x4xf32>) {
    ^bb0(%in: i8, %in_0: f32, %in_1: f32, %out: f32):
      %5 = arith.extui %in : i8 to i32
      %6 = arith.uitofp %5 : i32 to f32
      %7 = arith.subf %6, %in_1 : f32
      %8 = arith.mulf %7, %in_0 : f32
      linalg.yield %8 : f32
    } -> tensor<6x3x4xf32>
    %4 = linalg.generic {indexing_maps = [#x5, #w5, #y5], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]} ins(%x, %3 : tensor<1x2x3x4xf32>, tensor<6x3x4xf32>) outs(%2 : tensor<1x2x6xf32>) {
    ^bb0(%in: f32, %in_0: f32, %out: f32):
      %5 = arith.mulf %in, %in_0 : f32
      %6 = arith.addf %5, %out : f32
      linalg.yield %6 : f32
    } -> tensor<1x2x6xf32>
    return %4 : tensor<1x2x6xf32>
  }

  // what the text leaves out: two constants, a tensor that is read before it is written, a start value
  func.func @open(%codes: tensor<6x3x4xi8>, %x: tensor<1x2x3x4xf32>) -> tensor<1x2x6xf32> {
    %cst = arith.constant dense_resource<__elided__> : tensor<6x3x1xf32>
    %0 = tensor.empty() : tensor<6x3x1xf32>
    %1 = tensor.empty() : tensor<6x3x4xf32>
    %2 = tensor.empty() : tensor<1x2x6xf32>
    %3 = flow.dispatch.region -> (tensor<1x2x6xf32>) {
      %4 = linalg.generic {indexing_maps = [#id3, #unit, #unit, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%codes, %cst, %0 : tensor<6x3x4xi8>, tensor<6x3x1xf32>, tensor<6x3x1xf32>) outs(%1 : tensor<6x3x4xf32>) {
      ^bb0(%in: i8, %in_0: f32, %in_1: f32, %out: f32):
        %6 = arith.extui %in : i8 to i32
        %7 = arith.uitofp %6 : i32 to f32
        %8 = arith.subf %7, %in_1 : f32
        %9 = arith.mulf %8, %in_0 : f32
        linalg.yield %9 : f32
      } -> tensor<6x3x4xf32>
      %5 = linalg.generic {indexing_maps = [#x5, #w5, #y5], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]} ins(%x, %4 : tensor<1x2x3x4xf32>, tensor<6x3x4xf32>) outs(%2 : tensor<1x2x6xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %6 = arith.mulf %in, %in_0 : f32
        %7 = arith.addf %6, %out : f32
        linalg.yield %7 : f32
      } -> tensor<1x2x6xf32>
      flow.return %5 : tensor<1x2x6xf32>
    }
    return %3 : tensor<1x2x6xf32>
  }

  // the groups in the result: the label of d2 is wrong, the map decides
  func.func @grouped_result(%codes: tensor<5x3x4xi8>, %x: tensor<2x5xf32>) -> tensor<2x3x4xf32> {
    %cst = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<2x3x4xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d3)>, affine_map<(d0, d1, d2, d3) -> (d3, d1, d2)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%x, %codes : tensor<2x5xf32>, tensor<5x3x4xi8>) outs(%1 : tensor<2x3x4xf32>) {
    ^bb0(%in: f32, %in_0: i8, %out: f32):
      %3 = arith.sitofp %in_0 : i8 to f32
      %4 = arith.mulf %in, %3 : f32
      %5 = arith.addf %4, %out : f32
      linalg.yield %5 : f32
    } -> tensor<2x3x4xf32>
    return %2 : tensor<2x3x4xf32>
  }

  // the groups as one dim before the product, with scales that know the groups
  func.func @collapsed(%codes: tensor<6x3x4xi8>, %scales: tensor<6x3xf32>, %x: tensor<?x12xf32>) -> tensor<?x6xf32> {
    %c0 = arith.constant 0 : index
    %m = tensor.dim %x, %c0 : tensor<?x12xf32>
    %cst = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty(%m) : tensor<?x6xf32>
    %1 = tensor.empty() : tensor<6x3x4xf32>
    %2 = linalg.fill ins(%cst : f32) outs(%0 : tensor<?x6xf32>) -> tensor<?x6xf32>
    %3 = linalg.generic {indexing_maps = [#id3, #group, #id3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%codes, %scales : tensor<6x3x4xi8>, tensor<6x3xf32>) outs(%1 : tensor<6x3x4xf32>) {
    ^bb0(%in: i8, %in_0: f32, %out: f32):
      %5 = arith.uitofp %in : i8 to f32
      %6 = arith.mulf %5, %in_0 : f32
      linalg.yield %6 : f32
    } -> tensor<6x3x4xf32>
    %collapsed = tensor.collapse_shape %3 [[0], [1, 2]] : tensor<6x3x4xf32> into tensor<6x12xf32>
    %4 = linalg.matmul_transpose_b ins(%x, %collapsed : tensor<?x12xf32>, tensor<6x12xf32>) outs(%2 : tensor<?x6xf32>) -> tensor<?x6xf32>
    return %4 : tensor<?x6xf32>
  }

  // the layer in tiles of (2, 1, 4): pack, compute, unpack
  func.func @packed(%codes: tensor<6x3x4xi8>, %scales: tensor<6x3x1xf32>, %x: tensor<1x1x3x4xf32>) -> tensor<1x1x6xf32> {
    %cst = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<1x1x6xf32>
    %1 = tensor.empty() : tensor<1x1x3x2xf32>
    %2 = linalg.fill ins(%cst : f32) outs(%1 : tensor<1x1x3x2xf32>) -> tensor<1x1x3x2xf32>
    %3 = tensor.empty() : tensor<3x3x1x2x1x4xi8>
    %pack = tensor.pack %codes inner_dims_pos = [0, 1, 2] inner_tiles = [2, 1, 4] into %3 : tensor<6x3x4xi8> -> tensor<3x3x1x2x1x4xi8>
    %4 = tensor.empty() : tensor<3x3x1x2x1xf32>
    %pack_0 = tensor.pack %scales inner_dims_pos = [0, 1] inner_tiles = [2, 1] into %4 : tensor<6x3x1xf32> -> tensor<3x3x1x2x1xf32>
    %5 = tensor.empty() : tensor<3x3x1x2x1x4xf32>
    %6 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2, d3, d4, d5)>, affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, 0, d3, d4)>, affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2, d3, d4, d5)>], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%pack, %pack_0 : tensor<3x3x1x2x1x4xi8>, tensor<3x3x1x2x1xf32>) outs(%5 : tensor<3x3x1x2x1x4xf32>) {
    ^bb0(%in: i8, %in_2: f32, %out: f32):
      %9 = arith.extui %in : i8 to i32
      %10 = arith.uitofp %9 : i32 to f32
      %11 = arith.mulf %10, %in_2 : f32
      linalg.yield %11 : f32
    } -> tensor<3x3x1x2x1x4xf32>
    %7 = tensor.empty() : tensor<1x1x3x1x1x4xf32>
    %pack_1 = tensor.pack %x inner_dims_pos = [2, 3] inner_tiles = [1, 4] into %7 : tensor<1x1x3x4xf32> -> tensor<1x1x3x1x1x4xf32>
    %8 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d0, d1, d3, d4, d6, d7)>, affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d2, d3, d4, d5, d6, d7)>, affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d0, d1, d2, d5)>], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "parallel", "reduction", "reduction"]} ins(%pack_1, %6 : tensor<1x1x3x1x1x4xf32>, tensor<3x3x1x2x1x4xf32>) outs(%2 : tensor<1x1x3x2xf32>) {
    ^bb0(%in: f32, %in_2: f32, %out: f32):
      %9 = arith.mulf %in, %in_2 : f32
      %10 = arith.addf %9, %out : f32
      linalg.yield %10 : f32
    } -> tensor<1x1x3x2xf32>
    %unpack = tensor.unpack %8 inner_dims_pos = [2] inner_tiles = [2] into %0 : tensor<1x1x3x2xf32> -> tensor<1x1x6xf32>
    return %unpack : tensor<1x1x6xf32>
  }

  // codes of four bits, signed and unsigned, and two of them in a byte
  func.func @nibbles(%low_first: tensor<3x4xi8>, %wide: tensor<3x8xi4>, %x: tensor<8xf32>) -> (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) {
    %cst = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<3xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<3xf32>) -> tensor<3xf32>
    %pairs = tensor.expand_shape %x [[0, 1]] output_shape [4, 2] : tensor<8xf32> into tensor<4x2xf32>
    %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1, 0)>, affine_map<(d0, d1) -> (d1, 1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%low_first, %pairs, %pairs : tensor<3x4xi8>, tensor<4x2xf32>, tensor<4x2xf32>) outs(%1 : tensor<3xf32>) {
    ^bb0(%in: i8, %in_0: f32, %in_1: f32, %out: f32):
      %c15 = arith.constant 15 : i8
      %c4 = arith.constant 4 : i8
      %5 = arith.andi %in, %c15 : i8
      %6 = arith.shrui %in, %c4 : i8
      %7 = arith.uitofp %5 : i8 to f32
      %8 = arith.uitofp %6 : i8 to f32
      %9 = arith.mulf %7, %in_0 : f32
      %10 = arith.mulf %8, %in_1 : f32
      %11 = arith.addf %9, %10 : f32
      %12 = arith.addf %out, %11 : f32
      linalg.yield %12 : f32
    } -> tensor<3xf32>
    %3 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%wide, %x : tensor<3x8xi4>, tensor<8xf32>) outs(%1 : tensor<3xf32>) {
    ^bb0(%in: i4, %in_0: f32, %out: f32):
      %5 = arith.extui %in : i4 to i32
      %6 = arith.sitofp %5 : i32 to f32
      %7 = arith.mulf %6, %in_0 : f32
      %8 = arith.addf %out, %7 : f32
      linalg.yield %8 : f32
    } -> tensor<3xf32>
    %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%wide, %x : tensor<3x8xi4>, tensor<8xf32>) outs(%1 : tensor<3xf32>) {
    ^bb0(%in: i4, %in_0: f32, %out: f32):
      %5 = arith.extsi %in : i4 to i32
      %6 = arith.sitofp %5 : i32 to f32
      %7 = arith.mulf %6, %in_0 : f32
      %8 = arith.addf %out, %7 : f32
      linalg.yield %8 : f32
    } -> tensor<3xf32>
    return %2, %3, %4 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
  }

  // integer products with zero points, and their sum less the groups' zero points that stand in the text
  func.func @integers(%a: tensor<2xi8>, %b: tensor<2xi8>) -> tensor<i32> {
    %za = arith.constant 2 : i32
    %zb = arith.constant 4 : i32
    %c0 = arith.constant 0 : i32
    %0 = tensor.empty() : tensor<1x1xi32>
    %1 = linalg.fill ins(%c0 : i32) outs(%0 : tensor<1x1xi32>) -> tensor<1x1xi32>
    %row = tensor.expand_shape %a [[0, 1]] output_shape [1, 2] : tensor<2xi8> into tensor<1x2xi8>
    %column = tensor.expand_shape %b [[0, 1]] output_shape [2, 1] : tensor<2xi8> into tensor<2x1xi8>
    %2 = linalg.quantized_matmul ins(%row, %column, %za, %zb : tensor<1x2xi8>, tensor<2x1xi8>, i32, i32) outs(%1 : tensor<1x1xi32>) -> tensor<1x1xi32>
    %3 = tensor.collapse_shape %2 [] : tensor<1x1xi32> into tensor<i32>
    return %3 : tensor<i32>
  }

  func.func @constant_zeros(%x: tensor<2x32xf32>) -> tensor<2xf32> {
    %zeros = arith.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
    %codes = arith.constant dense<4> : tensor<2x3x32xi8>
    %cst = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<2xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2xf32>) -> tensor<2xf32>
    %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>, affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d0)>], iterator_types = ["parallel", "reduction", "reduction"]} ins(%codes, %zeros, %x : tensor<2x3x32xi8>, tensor<2x3xf32>, tensor<2x32xf32>) outs(%1 : tensor<2xf32>) {
    ^bb0(%in: i8, %in_0: f32, %in_1: f32, %out: f32):
      %3 = arith.uitofp %in : i8 to f32
      %4 = arith.subf %3, %in_0 : f32
      %5 = arith.mulf %4, %in_1 : f32
      %6 = arith.addf %5, %out : f32
      linalg.yield %6 : f32
    } -> tensor<2xf32>
    return %2 : tensor<2xf32>
  }
}
