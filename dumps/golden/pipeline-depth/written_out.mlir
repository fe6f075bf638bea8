// kernel: dumps/kernels/matmul_tpu.py::matmul bfloat16[512,1024] bfloat16[1024,512]
// target: v5e
// pipeline: pipeline-depth{stages=3}
// jaxlib: 0.12.0.1
module @matmul {
  func.func @matmul(%arg0: memref<512x1024xbf16, #tpu.memory_space<any>>, %arg1: memref<1024x512xbf16, #tpu.memory_space<any>>, %arg2: memref<512x512xbf16, #tpu.memory_space<any>>, %arg3: memref<256x256xf32, #tpu.memory_space<vmem>>, %arg4: memref<3x256x256xbf16, #tpu.memory_space<vmem>>, %arg5: memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>, %arg6: memref<3x256x256xbf16, #tpu.memory_space<vmem>>, %arg7: memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>, %arg8: memref<3x256x256xbf16, #tpu.memory_space<vmem>>, %arg9: memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) attributes {dimension_semantics = [], scalar_prefetch = 0 : i64, scratch_operands = 7 : i64, tpu.core_type = #tpu.core_type<tc>} {
    %c0_i32 = arith.constant 0 : i32
    %c0_i32_0 = arith.constant 0 : i32
    %0 = tpu.memref_slice %arg0[%c0_i32, %c0_i32_0] : memref<512x1024xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
    %c0_i32_1 = arith.constant 0 : i32
    %c0_i32_2 = arith.constant 0 : i32
    %c0_i32_3 = arith.constant 0 : i32
    %1 = tpu.memref_slice %arg4[%c0_i32_1, %c0_i32_2, %c0_i32_3] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
    %2 = tpu.memref_squeeze %1 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
    %c0_i32_4 = arith.constant 0 : i32
    %3 = tpu.memref_slice %arg5[%c0_i32_4] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
    %4 = tpu.memref_squeeze %3 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
    tpu.enqueue_dma source(%0 : memref<256x256xbf16, #tpu.memory_space<any>>) target(%2 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target_semaphore(%4 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>)
    %c0_i32_5 = arith.constant 0 : i32
    %c256_i32 = arith.constant 256 : i32
    %5 = tpu.memref_slice %arg0[%c0_i32_5, %c256_i32] : memref<512x1024xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
    %c1_i32 = arith.constant 1 : i32
    %c0_i32_6 = arith.constant 0 : i32
    %c0_i32_7 = arith.constant 0 : i32
    %6 = tpu.memref_slice %arg4[%c1_i32, %c0_i32_6, %c0_i32_7] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
    %7 = tpu.memref_squeeze %6 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
    %c1_i32_8 = arith.constant 1 : i32
    %8 = tpu.memref_slice %arg5[%c1_i32_8] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
    %9 = tpu.memref_squeeze %8 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
    tpu.enqueue_dma source(%5 : memref<256x256xbf16, #tpu.memory_space<any>>) target(%7 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target_semaphore(%9 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>)
    %c0_i32_9 = arith.constant 0 : i32
    %c0_i32_10 = arith.constant 0 : i32
    %10 = tpu.memref_slice %arg1[%c0_i32_9, %c0_i32_10] : memref<1024x512xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
    %c0_i32_11 = arith.constant 0 : i32
    %c0_i32_12 = arith.constant 0 : i32
    %c0_i32_13 = arith.constant 0 : i32
    %11 = tpu.memref_slice %arg6[%c0_i32_11, %c0_i32_12, %c0_i32_13] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
    %12 = tpu.memref_squeeze %11 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
    %c0_i32_14 = arith.constant 0 : i32
    %13 = tpu.memref_slice %arg7[%c0_i32_14] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
    %14 = tpu.memref_squeeze %13 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
    tpu.enqueue_dma source(%10 : memref<256x256xbf16, #tpu.memory_space<any>>) target(%12 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target_semaphore(%14 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>)
    %c256_i32_15 = arith.constant 256 : i32
    %c0_i32_16 = arith.constant 0 : i32
    %15 = tpu.memref_slice %arg1[%c256_i32_15, %c0_i32_16] : memref<1024x512xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
    %c1_i32_17 = arith.constant 1 : i32
    %c0_i32_18 = arith.constant 0 : i32
    %c0_i32_19 = arith.constant 0 : i32
    %16 = tpu.memref_slice %arg6[%c1_i32_17, %c0_i32_18, %c0_i32_19] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
    %17 = tpu.memref_squeeze %16 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
    %c1_i32_20 = arith.constant 1 : i32
    %18 = tpu.memref_slice %arg7[%c1_i32_20] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
    %19 = tpu.memref_squeeze %18 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
    tpu.enqueue_dma source(%15 : memref<256x256xbf16, #tpu.memory_space<any>>) target(%17 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target_semaphore(%19 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>)
    %c0_i32_21 = arith.constant 0 : i32
    %c0_i32_22 = arith.constant 0 : i32
    %c0_i32_23 = arith.constant 0 : i32
    %c0_i32_24 = arith.constant 0 : i32
    %c0_i32_25 = arith.constant 0 : i32
    %c2_i32 = arith.constant 2 : i32
    %c2_i32_26 = arith.constant 2 : i32
    %c1_i32_27 = arith.constant 1 : i32
    %c2_i32_28 = arith.constant 2 : i32
    %c1_i32_29 = arith.constant 1 : i32
    %c2_i32_30 = arith.constant 2 : i32
    %c-1_i32 = arith.constant -1 : i32
    %c-1_i32_31 = arith.constant -1 : i32
    %c-1_i32_32 = arith.constant -1 : i32
    %c0_i32_33 = arith.constant 0 : i32
    %c16_i32 = arith.constant 16 : i32
    %c1_i32_34 = arith.constant 1 : i32
    %20:14 = scf.for %arg10 = %c0_i32_33 to %c16_i32 step %c1_i32_34 iter_args(%arg11 = %c0_i32_21, %arg12 = %c0_i32_22, %arg13 = %c0_i32_23, %arg14 = %c0_i32_24, %arg15 = %c0_i32_25, %arg16 = %c2_i32, %arg17 = %c2_i32_26, %arg18 = %c1_i32_27, %arg19 = %c2_i32_28, %arg20 = %c1_i32_29, %arg21 = %c2_i32_30, %arg22 = %c-1_i32, %arg23 = %c-1_i32_31, %arg24 = %c-1_i32_32) -> (i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32)  : i32 {
      %c2_i32_39 = arith.constant 2 : i32
      %25 = arith.addi %arg10, %c2_i32_39 : i32
      %c16_i32_40 = arith.constant 16 : i32
      %26 = arith.cmpi slt, %25, %c16_i32_40 : i32
      %c1_i32_41 = arith.constant 1 : i32
      %27 = arith.addi %arg18, %c1_i32_41 : i32
      %c3_i32 = arith.constant 3 : i32
      %28 = arith.cmpi eq, %27, %c3_i32 : i32
      %c0_i32_42 = arith.constant 0 : i32
      %29 = arith.select %28, %c0_i32_42, %27 : i32
      %30 = arith.select %26, %29, %arg18 : i32
      scf.if %26 {
        %c256_i32_101 = arith.constant 256 : i32
        %114 = arith.muli %arg14, %c256_i32_101 : i32
        %c256_i32_102 = arith.constant 256 : i32
        %115 = arith.muli %arg16, %c256_i32_102 : i32
        %116 = tpu.memref_slice %arg0[%114, %115] : memref<512x1024xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
        %c0_i32_103 = arith.constant 0 : i32
        %c0_i32_104 = arith.constant 0 : i32
        %117 = tpu.memref_slice %arg4[%30, %c0_i32_103, %c0_i32_104] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
        %118 = tpu.memref_squeeze %117 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
        %119 = tpu.memref_slice %arg5[%30] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
        %120 = tpu.memref_squeeze %119 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
        tpu.enqueue_dma source(%116 : memref<256x256xbf16, #tpu.memory_space<any>>) target(%118 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target_semaphore(%120 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>)
      }
      %c1_i32_43 = arith.constant 1 : i32
      %31 = arith.addi %arg17, %c1_i32_43 : i32
      %c3_i32_44 = arith.constant 3 : i32
      %32 = arith.cmpi eq, %31, %c3_i32_44 : i32
      %c0_i32_45 = arith.constant 0 : i32
      %33 = arith.select %32, %c0_i32_45, %31 : i32
      %c256_i32_46 = arith.constant 256 : i32
      %34 = arith.muli %arg11, %c256_i32_46 : i32
      %c256_i32_47 = arith.constant 256 : i32
      %35 = arith.muli %arg13, %c256_i32_47 : i32
      %36 = tpu.memref_slice %arg0[%34, %35] : memref<512x1024xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
      %c0_i32_48 = arith.constant 0 : i32
      %c0_i32_49 = arith.constant 0 : i32
      %37 = tpu.memref_slice %arg4[%33, %c0_i32_48, %c0_i32_49] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
      %38 = tpu.memref_squeeze %37 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
      %39 = tpu.memref_slice %arg5[%33] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      %40 = tpu.memref_squeeze %39 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      tpu.wait_dma source(%36 : memref<256x256xbf16, #tpu.memory_space<any>>) target(%38 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target_semaphore(%40 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) {wait_target = true}
      %c0_i32_50 = arith.constant 0 : i32
      %c0_i32_51 = arith.constant 0 : i32
      %41 = tpu.memref_slice %arg4[%33, %c0_i32_50, %c0_i32_51] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
      %42 = tpu.memref_squeeze %41 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
      %c2_i32_52 = arith.constant 2 : i32
      %43 = arith.addi %arg10, %c2_i32_52 : i32
      %c16_i32_53 = arith.constant 16 : i32
      %44 = arith.cmpi slt, %43, %c16_i32_53 : i32
      %c1_i32_54 = arith.constant 1 : i32
      %45 = arith.addi %arg20, %c1_i32_54 : i32
      %c3_i32_55 = arith.constant 3 : i32
      %46 = arith.cmpi eq, %45, %c3_i32_55 : i32
      %c0_i32_56 = arith.constant 0 : i32
      %47 = arith.select %46, %c0_i32_56, %45 : i32
      %48 = arith.select %44, %47, %arg20 : i32
      scf.if %44 {
        %c256_i32_101 = arith.constant 256 : i32
        %114 = arith.muli %arg16, %c256_i32_101 : i32
        %c256_i32_102 = arith.constant 256 : i32
        %115 = arith.muli %arg15, %c256_i32_102 : i32
        %116 = tpu.memref_slice %arg1[%114, %115] : memref<1024x512xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
        %c0_i32_103 = arith.constant 0 : i32
        %c0_i32_104 = arith.constant 0 : i32
        %117 = tpu.memref_slice %arg6[%48, %c0_i32_103, %c0_i32_104] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
        %118 = tpu.memref_squeeze %117 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
        %119 = tpu.memref_slice %arg7[%48] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
        %120 = tpu.memref_squeeze %119 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
        tpu.enqueue_dma source(%116 : memref<256x256xbf16, #tpu.memory_space<any>>) target(%118 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target_semaphore(%120 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>)
      }
      %c1_i32_57 = arith.constant 1 : i32
      %49 = arith.addi %arg19, %c1_i32_57 : i32
      %c3_i32_58 = arith.constant 3 : i32
      %50 = arith.cmpi eq, %49, %c3_i32_58 : i32
      %c0_i32_59 = arith.constant 0 : i32
      %51 = arith.select %50, %c0_i32_59, %49 : i32
      %c256_i32_60 = arith.constant 256 : i32
      %52 = arith.muli %arg13, %c256_i32_60 : i32
      %c256_i32_61 = arith.constant 256 : i32
      %53 = arith.muli %arg12, %c256_i32_61 : i32
      %54 = tpu.memref_slice %arg1[%52, %53] : memref<1024x512xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
      %c0_i32_62 = arith.constant 0 : i32
      %c0_i32_63 = arith.constant 0 : i32
      %55 = tpu.memref_slice %arg6[%51, %c0_i32_62, %c0_i32_63] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
      %56 = tpu.memref_squeeze %55 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
      %57 = tpu.memref_slice %arg7[%51] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      %58 = tpu.memref_squeeze %57 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      tpu.wait_dma source(%54 : memref<256x256xbf16, #tpu.memory_space<any>>) target(%56 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target_semaphore(%58 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) {wait_target = true}
      %c0_i32_64 = arith.constant 0 : i32
      %c0_i32_65 = arith.constant 0 : i32
      %59 = tpu.memref_slice %arg6[%51, %c0_i32_64, %c0_i32_65] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
      %60 = tpu.memref_squeeze %59 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
      %61 = arith.cmpi ne, %arg11, %arg22 : i32
      %62 = arith.cmpi ne, %arg12, %arg23 : i32
      %63 = arith.ori %61, %62 : i1
      %c0_i32_66 = arith.constant 0 : i32
      %64 = arith.cmpi sge, %arg24, %c0_i32_66 : i32
      %65 = arith.andi %63, %64 : i1
      scf.if %65 {
        %c0_i32_101 = arith.constant 0 : i32
        %c0_i32_102 = arith.constant 0 : i32
        %114 = tpu.memref_slice %arg8[%arg21, %c0_i32_101, %c0_i32_102] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
        %115 = tpu.memref_squeeze %114 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
        %c256_i32_103 = arith.constant 256 : i32
        %116 = arith.muli %arg22, %c256_i32_103 : i32
        %c256_i32_104 = arith.constant 256 : i32
        %117 = arith.muli %arg23, %c256_i32_104 : i32
        %118 = tpu.memref_slice %arg2[%116, %117] : memref<512x512xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
        %119 = tpu.memref_slice %arg9[%arg21] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
        %120 = tpu.memref_squeeze %119 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
        tpu.enqueue_dma source(%115 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target(%118 : memref<256x256xbf16, #tpu.memory_space<any>>) target_semaphore(%120 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>)
      }
      %c1_i32_67 = arith.constant 1 : i32
      %66 = arith.addi %arg21, %c1_i32_67 : i32
      %c3_i32_68 = arith.constant 3 : i32
      %67 = arith.cmpi eq, %66, %c3_i32_68 : i32
      %c0_i32_69 = arith.constant 0 : i32
      %68 = arith.select %67, %c0_i32_69, %66 : i32
      %69 = arith.select %63, %68, %arg21 : i32
      %70 = arith.extui %63 : i1 to i32
      %71 = arith.addi %arg24, %70 : i32
      %c3_i32_70 = arith.constant 3 : i32
      %72 = arith.cmpi sge, %71, %c3_i32_70 : i32
      %73 = arith.andi %63, %72 : i1
      scf.if %73 {
        %c256_i32_101 = arith.constant 256 : i32
        %114 = arith.muli %arg11, %c256_i32_101 : i32
        %c256_i32_102 = arith.constant 256 : i32
        %115 = arith.muli %arg12, %c256_i32_102 : i32
        %116 = tpu.memref_slice %arg2[%114, %115] : memref<512x512xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
        %c0_i32_103 = arith.constant 0 : i32
        %c0_i32_104 = arith.constant 0 : i32
        %117 = tpu.memref_slice %arg8[%69, %c0_i32_103, %c0_i32_104] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
        %118 = tpu.memref_squeeze %117 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
        %119 = tpu.memref_slice %arg9[%69] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
        %120 = tpu.memref_squeeze %119 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
        tpu.wait_dma source(%118 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target(%116 : memref<256x256xbf16, #tpu.memory_space<any>>) target_semaphore(%120 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) {wait_target = true}
      }
      %c0_i32_71 = arith.constant 0 : i32
      %c0_i32_72 = arith.constant 0 : i32
      %74 = tpu.memref_slice %arg8[%69, %c0_i32_71, %c0_i32_72] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
      %75 = tpu.memref_squeeze %74 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
      %c0_i32_73 = arith.constant 0 : i32
      %76 = arith.cmpi eq, %arg13, %c0_i32_73 : i32
      %77 = arith.extui %76 : i1 to i32
      %c0_i32_74 = arith.constant 0 : i32
      %78 = arith.cmpi ne, %77, %c0_i32_74 : i32
      scf.if %78 {
        %cst_101 = arith.constant 0.000000e+00 : f32
        %114 = vector.broadcast %cst_101 : f32 to vector<256x256xf32>
        %c0_102 = arith.constant 0 : index
        %c0_103 = arith.constant 0 : index
        %115 = vector.load %arg3[%c0_102, %c0_103] : memref<256x256xf32, #tpu.memory_space<vmem>>, vector<256x256xf32>
        tpu.vector_store %arg3[%c0_102, %c0_103], %114 {strides = array<i32>} : memref<256x256xf32, #tpu.memory_space<vmem>>, vector<256x256xf32>, 
      } else {
      }
      %c0 = arith.constant 0 : index
      %c0_75 = arith.constant 0 : index
      %79 = vector.load %arg3[%c0, %c0_75] : memref<256x256xf32, #tpu.memory_space<vmem>>, vector<256x256xf32>
      %c0_76 = arith.constant 0 : index
      %c0_77 = arith.constant 0 : index
      %80 = vector.load %42[%c0_76, %c0_77] : memref<256x256xbf16, #tpu.memory_space<vmem>>, vector<256x256xbf16>
      %c0_78 = arith.constant 0 : index
      %c0_79 = arith.constant 0 : index
      %81 = vector.load %60[%c0_78, %c0_79] : memref<256x256xbf16, #tpu.memory_space<vmem>>, vector<256x256xbf16>
      %cst = arith.constant dense<0.000000e+00> : vector<256x256xf32>
      %82 = tpu.matmul %80, %81, %cst {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs_hint = false} : vector<256x256xbf16>, vector<256x256xbf16>, vector<256x256xf32> -> vector<256x256xf32>
      %83 = arith.addf %79, %82 : vector<256x256xf32>
      %c0_80 = arith.constant 0 : index
      %c0_81 = arith.constant 0 : index
      %84 = vector.load %arg3[%c0_80, %c0_81] : memref<256x256xf32, #tpu.memory_space<vmem>>, vector<256x256xf32>
      tpu.vector_store %arg3[%c0_80, %c0_81], %83 {strides = array<i32>} : memref<256x256xf32, #tpu.memory_space<vmem>>, vector<256x256xf32>, 
      %c3_i32_82 = arith.constant 3 : i32
      %85 = arith.cmpi eq, %arg13, %c3_i32_82 : i32
      %86 = arith.extui %85 : i1 to i32
      %c0_i32_83 = arith.constant 0 : i32
      %87 = arith.cmpi ne, %86, %c0_i32_83 : i32
      scf.if %87 {
        %c0_101 = arith.constant 0 : index
        %c0_102 = arith.constant 0 : index
        %114 = vector.load %arg3[%c0_101, %c0_102] : memref<256x256xf32, #tpu.memory_space<vmem>>, vector<256x256xf32>
        %115 = arith.truncf %114 : vector<256x256xf32> to vector<256x256xbf16>
        %c0_103 = arith.constant 0 : index
        %c0_104 = arith.constant 0 : index
        %116 = vector.load %75[%c0_103, %c0_104] : memref<256x256xbf16, #tpu.memory_space<vmem>>, vector<256x256xbf16>
        tpu.vector_store %75[%c0_103, %c0_104], %115 {strides = array<i32>} : memref<256x256xbf16, #tpu.memory_space<vmem>>, vector<256x256xbf16>, 
      } else {
      }
      %c1_i32_84 = arith.constant 1 : i32
      %88 = arith.addi %arg13, %c1_i32_84 : i32
      %c4_i32 = arith.constant 4 : i32
      %89 = arith.cmpi eq, %88, %c4_i32 : i32
      %c0_i32_85 = arith.constant 0 : i32
      %90 = arith.select %89, %c0_i32_85, %88 : i32
      %c1_i32_86 = arith.constant 1 : i32
      %91 = arith.addi %arg12, %c1_i32_86 : i32
      %c2_i32_87 = arith.constant 2 : i32
      %92 = arith.cmpi eq, %91, %c2_i32_87 : i32
      %c0_i32_88 = arith.constant 0 : i32
      %93 = arith.select %92, %c0_i32_88, %91 : i32
      %94 = arith.select %89, %93, %arg12 : i32
      %95 = arith.andi %89, %92 : i1
      %c1_i32_89 = arith.constant 1 : i32
      %96 = arith.addi %arg11, %c1_i32_89 : i32
      %c2_i32_90 = arith.constant 2 : i32
      %97 = arith.cmpi eq, %96, %c2_i32_90 : i32
      %c0_i32_91 = arith.constant 0 : i32
      %98 = arith.select %97, %c0_i32_91, %96 : i32
      %99 = arith.select %95, %98, %arg11 : i32
      %100 = arith.andi %95, %97 : i1
      %c1_i32_92 = arith.constant 1 : i32
      %101 = arith.addi %arg16, %c1_i32_92 : i32
      %c4_i32_93 = arith.constant 4 : i32
      %102 = arith.cmpi eq, %101, %c4_i32_93 : i32
      %c0_i32_94 = arith.constant 0 : i32
      %103 = arith.select %102, %c0_i32_94, %101 : i32
      %c1_i32_95 = arith.constant 1 : i32
      %104 = arith.addi %arg15, %c1_i32_95 : i32
      %c2_i32_96 = arith.constant 2 : i32
      %105 = arith.cmpi eq, %104, %c2_i32_96 : i32
      %c0_i32_97 = arith.constant 0 : i32
      %106 = arith.select %105, %c0_i32_97, %104 : i32
      %107 = arith.select %102, %106, %arg15 : i32
      %108 = arith.andi %102, %105 : i1
      %c1_i32_98 = arith.constant 1 : i32
      %109 = arith.addi %arg14, %c1_i32_98 : i32
      %c2_i32_99 = arith.constant 2 : i32
      %110 = arith.cmpi eq, %109, %c2_i32_99 : i32
      %c0_i32_100 = arith.constant 0 : i32
      %111 = arith.select %110, %c0_i32_100, %109 : i32
      %112 = arith.select %108, %111, %arg14 : i32
      %113 = arith.andi %108, %110 : i1
      scf.yield %99, %94, %90, %112, %107, %103, %33, %30, %51, %48, %69, %arg11, %arg12, %71 : i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32
    }
    %c0_i32_35 = arith.constant 0 : i32
    %21 = arith.cmpi sge, %20#13, %c0_i32_35 : i32
    scf.if %21 {
      %c0_i32_39 = arith.constant 0 : i32
      %c0_i32_40 = arith.constant 0 : i32
      %25 = tpu.memref_slice %arg8[%20#10, %c0_i32_39, %c0_i32_40] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
      %26 = tpu.memref_squeeze %25 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
      %c256_i32_41 = arith.constant 256 : i32
      %27 = arith.muli %20#11, %c256_i32_41 : i32
      %c256_i32_42 = arith.constant 256 : i32
      %28 = arith.muli %20#12, %c256_i32_42 : i32
      %29 = tpu.memref_slice %arg2[%27, %28] : memref<512x512xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
      %30 = tpu.memref_slice %arg9[%20#10] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      %31 = tpu.memref_squeeze %30 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      tpu.enqueue_dma source(%26 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target(%29 : memref<256x256xbf16, #tpu.memory_space<any>>) target_semaphore(%31 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>)
    }
    %c0_i32_36 = arith.constant 0 : i32
    %22 = arith.cmpi sge, %20#13, %c0_i32_36 : i32
    scf.if %22 {
      %c256_i32_39 = arith.constant 256 : i32
      %25 = arith.muli %20#11, %c256_i32_39 : i32
      %c256_i32_40 = arith.constant 256 : i32
      %26 = arith.muli %20#12, %c256_i32_40 : i32
      %27 = tpu.memref_slice %arg2[%25, %26] : memref<512x512xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
      %c0_i32_41 = arith.constant 0 : i32
      %c0_i32_42 = arith.constant 0 : i32
      %c0_i32_43 = arith.constant 0 : i32
      %28 = tpu.memref_slice %arg8[%c0_i32_41, %c0_i32_42, %c0_i32_43] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
      %29 = tpu.memref_squeeze %28 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
      %c0_i32_44 = arith.constant 0 : i32
      %30 = tpu.memref_slice %arg9[%c0_i32_44] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      %31 = tpu.memref_squeeze %30 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      tpu.wait_dma source(%29 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target(%27 : memref<256x256xbf16, #tpu.memory_space<any>>) target_semaphore(%31 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) {wait_target = true}
    }
    %c1_i32_37 = arith.constant 1 : i32
    %23 = arith.cmpi sge, %20#13, %c1_i32_37 : i32
    scf.if %23 {
      %c256_i32_39 = arith.constant 256 : i32
      %25 = arith.muli %20#11, %c256_i32_39 : i32
      %c256_i32_40 = arith.constant 256 : i32
      %26 = arith.muli %20#12, %c256_i32_40 : i32
      %27 = tpu.memref_slice %arg2[%25, %26] : memref<512x512xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
      %c1_i32_41 = arith.constant 1 : i32
      %c0_i32_42 = arith.constant 0 : i32
      %c0_i32_43 = arith.constant 0 : i32
      %28 = tpu.memref_slice %arg8[%c1_i32_41, %c0_i32_42, %c0_i32_43] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
      %29 = tpu.memref_squeeze %28 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
      %c1_i32_44 = arith.constant 1 : i32
      %30 = tpu.memref_slice %arg9[%c1_i32_44] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      %31 = tpu.memref_squeeze %30 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      tpu.wait_dma source(%29 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target(%27 : memref<256x256xbf16, #tpu.memory_space<any>>) target_semaphore(%31 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) {wait_target = true}
    }
    %c2_i32_38 = arith.constant 2 : i32
    %24 = arith.cmpi sge, %20#13, %c2_i32_38 : i32
    scf.if %24 {
      %c256_i32_39 = arith.constant 256 : i32
      %25 = arith.muli %20#11, %c256_i32_39 : i32
      %c256_i32_40 = arith.constant 256 : i32
      %26 = arith.muli %20#12, %c256_i32_40 : i32
      %27 = tpu.memref_slice %arg2[%25, %26] : memref<512x512xbf16, #tpu.memory_space<any>> -> memref<256x256xbf16, #tpu.memory_space<any>>
      %c2_i32_41 = arith.constant 2 : i32
      %c0_i32_42 = arith.constant 0 : i32
      %c0_i32_43 = arith.constant 0 : i32
      %28 = tpu.memref_slice %arg8[%c2_i32_41, %c0_i32_42, %c0_i32_43] : memref<3x256x256xbf16, #tpu.memory_space<vmem>> -> memref<1x256x256xbf16, #tpu.memory_space<vmem>>
      %29 = tpu.memref_squeeze %28 : memref<1x256x256xbf16, #tpu.memory_space<vmem>> -> memref<256x256xbf16, #tpu.memory_space<vmem>>
      %c2_i32_44 = arith.constant 2 : i32
      %30 = tpu.memref_slice %arg9[%c2_i32_44] : memref<3x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      %31 = tpu.memref_squeeze %30 : memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>> -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
      tpu.wait_dma source(%29 : memref<256x256xbf16, #tpu.memory_space<vmem>>) target(%27 : memref<256x256xbf16, #tpu.memory_space<any>>) target_semaphore(%31 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) {wait_target = true}
    }
    return
  }
}
