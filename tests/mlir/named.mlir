// linalg's named ops.
module {
  func.func @matmuls(%a: tensor<3x5xf32>, %b: tensor<5x4xf32>, %at: tensor<5x3xf32>, %bt: tensor<4x5xf32>) -> (tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>) {
    %cst = arith.constant 1.0 : f32
    %0 = tensor.empty() : tensor<3x4xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<3x4xf32>) -> tensor<3x4xf32>
    %2 = linalg.matmul ins(%a, %b : tensor<3x5xf32>, tensor<5x4xf32>) outs(%1 : tensor<3x4xf32>) -> tensor<3x4xf32>
    %3 = linalg.matmul_transpose_a ins(%at, %b : tensor<5x3xf32>, tensor<5x4xf32>) outs(%1 : tensor<3x4xf32>) -> tensor<3x4xf32>
    %4 = linalg.matmul_transpose_b ins(%a, %bt : tensor<3x5xf32>, tensor<4x5xf32>) outs(%1 : tensor<3x4xf32>) -> tensor<3x4xf32>
    %5 = linalg.matmul indexing_maps = [affine_map<(d0, d1, d2) -> (d2, d0)>, affine_map<(d0, d1, d2) -> (d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>] ins(%at, %bt : tensor<5x3xf32>, tensor<4x5xf32>) outs(%1 : tensor<3x4xf32>) -> tensor<3x4xf32>
    return %2, %3, %4, %5 : tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
  }

  func.func @batches(%a: tensor<2x3x5xf32>, %b: tensor<2x5x4xf32>, %bt: tensor<2x4x5xf32>, %v: tensor<2x5xf32>) -> (tensor<2x3x4xf32>, tensor<2x3x4xf32>, tensor<3x4xf32>, tensor<2x3xf32>, tensor<2x4xf32>) {
    %cst = arith.constant 0.0 : f32
    %0 = tensor.empty() : tensor<2x3x4xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %2 = linalg.batch_matmul ins(%a, %b : tensor<2x3x5xf32>, tensor<2x5x4xf32>) outs(%1 : tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %3 = linalg.batch_matmul_transpose_b ins(%a, %bt : tensor<2x3x5xf32>, tensor<2x4x5xf32>) outs(%1 : tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %4 = tensor.empty() : tensor<3x4xf32>
    %5 = linalg.fill ins(%cst : f32) outs(%4 : tensor<3x4xf32>) -> tensor<3x4xf32>
    %6 = linalg.batch_reduce_matmul ins(%a, %b : tensor<2x3x5xf32>, tensor<2x5x4xf32>) outs(%5 : tensor<3x4xf32>) -> tensor<3x4xf32>
    %7 = tensor.empty() : tensor<2x3xf32>
    %8 = linalg.fill ins(%cst : f32) outs(%7 : tensor<2x3xf32>) -> tensor<2x3xf32>
    %9 = linalg.batch_matvec ins(%a, %v : tensor<2x3x5xf32>, tensor<2x5xf32>) outs(%8 : tensor<2x3xf32>) -> tensor<2x3xf32>
    %10 = tensor.empty() : tensor<2x4xf32>
    %11 = linalg.fill ins(%cst : f32) outs(%10 : tensor<2x4xf32>) -> tensor<2x4xf32>
    %12 = linalg.batch_vecmat ins(%v, %b : tensor<2x5xf32>, tensor<2x5x4xf32>) outs(%11 : tensor<2x4xf32>) -> tensor<2x4xf32>
    return %2, %3, %6, %9, %12 : tensor<2x3x4xf32>, tensor<2x3x4xf32>, tensor<3x4xf32>, tensor<2x3xf32>, tensor<2x4xf32>
  }

  // the products start from arguments; i8 is extended by its sign, or by zeros where the op says so
  func.func @vectors(%a: tensor<3x5xi8>, %x: tensor<5xi8>, %y: tensor<3xi8>, %s: tensor<3xi32>, %t: tensor<5xi32>, %u: tensor<i32>) -> (tensor<3xi32>, tensor<5xi32>, tensor<i32>, tensor<3x1xi32>) {
    %0 = linalg.matvec ins(%a, %x : tensor<3x5xi8>, tensor<5xi8>) outs(%s : tensor<3xi32>) -> tensor<3xi32>
    %1 = linalg.vecmat ins(%y, %a : tensor<3xi8>, tensor<3x5xi8>) outs(%t : tensor<5xi32>) -> tensor<5xi32>
    %2 = linalg.dot ins(%x, %x : tensor<5xi8>, tensor<5xi8>) outs(%u : tensor<i32>) -> tensor<i32>
    %3 = tensor.expand_shape %x [[0, 1]] output_shape [5, 1] : tensor<5xi8> into tensor<5x1xi8>
    %4 = tensor.expand_shape %s [[0, 1]] output_shape [3, 1] : tensor<3xi32> into tensor<3x1xi32>
    %5 = linalg.matmul {cast = #linalg.type_fn<cast_unsigned>} ins(%a, %3 : tensor<3x5xi8>, tensor<5x1xi8>) outs(%4 : tensor<3x1xi32>) -> tensor<3x1xi32>
    return %0, %1, %2, %5 : tensor<3xi32>, tensor<5xi32>, tensor<i32>, tensor<3x1xi32>
  }

  func.func @tiled(%a: tensor<2x3x4x5xf32>, %b: tensor<6x3x7x5xf32>, %c: tensor<4x5xf32>, %d: tensor<5x4xf32>) -> (tensor<2x6x4x7xf32>, tensor<4xf32>) {
    %cst = arith.constant 0.0 : f32
    %0 = tensor.empty() : tensor<2x6x4x7xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x6x4x7xf32>) -> tensor<2x6x4x7xf32>
    %2 = linalg.mmt4d ins(%a, %b : tensor<2x3x4x5xf32>, tensor<6x3x7x5xf32>) outs(%1 : tensor<2x6x4x7xf32>) -> tensor<2x6x4x7xf32>
    %3 = tensor.empty() : tensor<4xf32>
    %4 = linalg.fill ins(%cst : f32) outs(%3 : tensor<4xf32>) -> tensor<4xf32>
    %5 = linalg.contract indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0)>] ins(%c, %d : tensor<4x5xf32>, tensor<5x4xf32>) outs(%4 : tensor<4xf32>) -> tensor<4xf32>
    return %2, %5 : tensor<2x6x4x7xf32>, tensor<4xf32>
  }

  func.func @convolutions(%nhwc: tensor<1x7x8x2xf32>, %hwcf: tensor<3x2x2x4xf32>, %nchw: tensor<1x2x7x8xf32>, %fchw: tensor<4x2x3x2xf32>, %hwc: tensor<3x2x2xf32>, %line: tensor<9xf32>, %taps: tensor<3xf32>) -> (tensor<1x3x4x4xf32>, tensor<1x4x5x7xf32>, tensor<1x3x4x2xf32>, tensor<7xf32>) {
    %cst = arith.constant 0.0 : f32
    %0 = tensor.empty() : tensor<1x3x4x4xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x3x4x4xf32>) -> tensor<1x3x4x4xf32>
    %2 = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>} ins(%nhwc, %hwcf : tensor<1x7x8x2xf32>, tensor<3x2x2x4xf32>) outs(%1 : tensor<1x3x4x4xf32>) -> tensor<1x3x4x4xf32>
    %3 = tensor.empty() : tensor<1x4x5x7xf32>
    %4 = linalg.fill ins(%cst : f32) outs(%3 : tensor<1x4x5x7xf32>) -> tensor<1x4x5x7xf32>
    %5 = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%nchw, %fchw : tensor<1x2x7x8xf32>, tensor<4x2x3x2xf32>) outs(%4 : tensor<1x4x5x7xf32>) -> tensor<1x4x5x7xf32>
    %6 = tensor.empty() : tensor<1x3x4x2xf32>
    %7 = linalg.fill ins(%cst : f32) outs(%6 : tensor<1x3x4x2xf32>) -> tensor<1x3x4x2xf32>
    %shrunk = tensor.extract_slice %nhwc[0, 0, 0, 0] [1, 7, 7, 2] [1, 1, 1, 1] : tensor<1x7x8x2xf32> to tensor<1x7x7x2xf32>
    %8 = linalg.depthwise_conv_2d_nhwc_hwc {dilations = dense<[2, 3]> : tensor<2xi64>, strides = dense<[1, 1]> : tensor<2xi64>} ins(%shrunk, %hwc : tensor<1x7x7x2xf32>, tensor<3x2x2xf32>) outs(%7 : tensor<1x3x4x2xf32>) -> tensor<1x3x4x2xf32>
    %9 = tensor.empty() : tensor<7xf32>
    %10 = linalg.fill ins(%cst : f32) outs(%9 : tensor<7xf32>) -> tensor<7xf32>
    %11 = linalg.conv_1d ins(%line, %taps : tensor<9xf32>, tensor<3xf32>) outs(%10 : tensor<7xf32>) -> tensor<7xf32>
    return %2, %5, %8, %11 : tensor<1x3x4x4xf32>, tensor<1x4x5x7xf32>, tensor<1x3x4x2xf32>, tensor<7xf32>
  }

  func.func @poolings(%a: tensor<1x6x8x2xf32>, %b: tensor<1x2x6x8xi8>) -> (tensor<1x3x4x2xf32>, tensor<1x3x4x2xf32>, tensor<1x2x4x7xi8>) {
    %low = arith.constant 0xFF800000 : f32
    %cst = arith.constant 0.0 : f32
    %least = arith.constant -128 : i8
    %window = tensor.empty() : tensor<2x2xf32>
    %0 = tensor.empty() : tensor<1x3x4x2xf32>
    %1 = linalg.fill ins(%low : f32) outs(%0 : tensor<1x3x4x2xf32>) -> tensor<1x3x4x2xf32>
    %2 = linalg.pooling_nhwc_max {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>} ins(%a, %window : tensor<1x6x8x2xf32>, tensor<2x2xf32>) outs(%1 : tensor<1x3x4x2xf32>) -> tensor<1x3x4x2xf32>
    %3 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x3x4x2xf32>) -> tensor<1x3x4x2xf32>
    %4 = linalg.pooling_nhwc_sum {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>} ins(%a, %window : tensor<1x6x8x2xf32>, tensor<2x2xf32>) outs(%3 : tensor<1x3x4x2xf32>) -> tensor<1x3x4x2xf32>
    %5 = tensor.empty() : tensor<3x2xi8>
    %6 = tensor.empty() : tensor<1x2x4x7xi8>
    %7 = linalg.fill ins(%least : i8) outs(%6 : tensor<1x2x4x7xi8>) -> tensor<1x2x4x7xi8>
    %8 = linalg.pooling_nchw_max ins(%b, %5 : tensor<1x2x6x8xi8>, tensor<3x2xi8>) outs(%7 : tensor<1x2x4x7xi8>) -> tensor<1x2x4x7xi8>
    return %2, %4, %8 : tensor<1x3x4x2xf32>, tensor<1x3x4x2xf32>, tensor<1x2x4x7xi8>
  }

  func.func @elementwise(%a: tensor<3x4xf32>, %b: tensor<3x4xf32>, %c: tensor<3x4xi1>) -> (tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>, tensor<4x3xf32>) {
    %0 = tensor.empty() : tensor<3x4xf32>
    %1 = linalg.div ins(%a, %b : tensor<3x4xf32>, tensor<3x4xf32>) outs(%0 : tensor<3x4xf32>) -> tensor<3x4xf32>
    %2 = linalg.elementwise kind=#linalg.elementwise_kind<max_signed> ins(%1, %b : tensor<3x4xf32>, tensor<3x4xf32>) outs(%0 : tensor<3x4xf32>) -> tensor<3x4xf32>
    %3 = linalg.select ins(%c, %a, %b : tensor<3x4xi1>, tensor<3x4xf32>, tensor<3x4xf32>) outs(%0 : tensor<3x4xf32>) -> tensor<3x4xf32>
    %4 = linalg.copy ins(%a : tensor<3x4xf32>) outs(%0 : tensor<3x4xf32>) -> tensor<3x4xf32>
    %5 = tensor.empty() : tensor<4x3xf32>
    %6 = linalg.elementwise kind=#linalg.elementwise_kind<exp> indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>] ins(%a : tensor<3x4xf32>) outs(%5 : tensor<4x3xf32>) -> tensor<4x3xf32>
    return %1, %2, %3, %4, %6 : tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>, tensor<4x3xf32>
  }

  func.func @regions(%a: tensor<3x4xf32>, %b: tensor<3x4xf32>, %start: tensor<3xf32>) -> (tensor<3x4xf32>, tensor<3x4xf32>, tensor<3xf32>, tensor<4xf32>) {
    %0 = tensor.empty() : tensor<3x4xf32>
    %1 = linalg.map { arith.mulf } ins(%a, %b : tensor<3x4xf32>, tensor<3x4xf32>) outs(%0 : tensor<3x4xf32>)
    %2 = linalg.map ins(%a : tensor<3x4xf32>) outs(%0 : tensor<3x4xf32>)
      (%in: f32) {
        %t = math.tanh %in : f32
        linalg.yield %t : f32
      }
    %3 = linalg.reduce ins(%a : tensor<3x4xf32>) outs(%start : tensor<3xf32>) dimensions = [1]
      (%in: f32, %acc: f32) {
        %m = arith.maximumf %in, %acc : f32
        linalg.yield %m : f32
      }
    %one = arith.constant 1.0 : f32
    %4 = tensor.empty() : tensor<4xf32>
    %5 = linalg.fill ins(%one : f32) outs(%4 : tensor<4xf32>) -> tensor<4xf32>
    %6 = linalg.reduce { arith.mulf } ins(%a : tensor<3x4xf32>) outs(%5 : tensor<4xf32>) dimensions = [0]
    return %1, %2, %3, %6 : tensor<3x4xf32>, tensor<3x4xf32>, tensor<3xf32>, tensor<4xf32>
  }
}
