//! The instructions of a program, in AVX-512's encoding and in AVX2's.

use ferroflow_primitives::vector_program::BinaryInst;
use iced_x86::Code;

/// The same instruction of AVX-512 and of AVX2.
pub(super) type Forms = [Code; 2];

pub(super) const LOAD: Forms = [
    Code::EVEX_Vmovups_zmm_k1z_zmmm512,
    Code::VEX_Vmovups_ymm_ymmm256,
];
pub(super) const BROADCAST: Forms = [
    Code::EVEX_Vbroadcastss_zmm_k1z_xmmm32,
    Code::VEX_Vbroadcastss_ymm_m32,
];
pub(super) const STORE: Forms = [
    Code::EVEX_Vmovups_zmmm512_k1z_zmm,
    Code::VEX_Vmovups_ymmm256_ymm,
];
pub(super) const ROUND: Forms = [
    Code::EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae,
    Code::VEX_Vroundps_ymm_ymmm256_imm8,
];
pub(super) const COMPARE: Forms = [
    Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae,
    Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8,
];
pub(super) const SQRT: Forms = [
    Code::EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er,
    Code::VEX_Vsqrtps_ymm_ymmm256,
];
/// Only programs for AVX-512 have it.
pub(super) const RSQRT: Forms = [Code::EVEX_Vrsqrt14ps_zmm_k1z_zmmm512b32, Code::INVALID];
pub(super) const TO_FLOAT: Forms = [
    Code::EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er,
    Code::VEX_Vcvtdq2ps_ymm_ymmm256,
];
pub(super) const SHIFT_LEFT: Forms = [
    Code::EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8,
    Code::VEX_Vpslld_ymm_ymm_imm8,
];
pub(super) const SHIFT_RIGHT: Forms = [
    Code::EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8,
    Code::VEX_Vpsrad_ymm_ymm_imm8,
];
pub(super) const MOVE: Forms = [
    Code::EVEX_Vmovups_zmm_k1z_zmmm512,
    Code::VEX_Vmovups_ymm_ymmm256,
];
/// The forms of a product and a sum `d = d * x + y`, `d = d * y + x` and `d = x * y + d`, where `y` may be in memory.
pub(super) const ADD: [Forms; 3] = [
    [
        Code::EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er,
        Code::VEX_Vfmadd213ps_ymm_ymm_ymmm256,
    ],
    [
        Code::EVEX_Vfmadd132ps_zmm_k1z_zmm_zmmm512b32_er,
        Code::VEX_Vfmadd132ps_ymm_ymm_ymmm256,
    ],
    [
        Code::EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er,
        Code::VEX_Vfmadd231ps_ymm_ymm_ymmm256,
    ],
];
/// Those with the product's sign changed.
pub(super) const NEG_ADD: [Forms; 3] = [
    [
        Code::EVEX_Vfnmadd213ps_zmm_k1z_zmm_zmmm512b32_er,
        Code::VEX_Vfnmadd213ps_ymm_ymm_ymmm256,
    ],
    [
        Code::EVEX_Vfnmadd132ps_zmm_k1z_zmm_zmmm512b32_er,
        Code::VEX_Vfnmadd132ps_ymm_ymm_ymmm256,
    ],
    [
        Code::EVEX_Vfnmadd231ps_zmm_k1z_zmm_zmmm512b32_er,
        Code::VEX_Vfnmadd231ps_ymm_ymm_ymmm256,
    ],
];

/// Returns the instruction and whether its operands can be exchanged.
pub(super) fn binary_forms(inst: BinaryInst) -> (Forms, bool) {
    match inst {
        BinaryInst::Add => (
            [
                Code::EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er,
                Code::VEX_Vaddps_ymm_ymm_ymmm256,
            ],
            true,
        ),
        BinaryInst::Sub => (
            [
                Code::EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er,
                Code::VEX_Vsubps_ymm_ymm_ymmm256,
            ],
            false,
        ),
        BinaryInst::Mul => (
            [
                Code::EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er,
                Code::VEX_Vmulps_ymm_ymm_ymmm256,
            ],
            true,
        ),
        BinaryInst::Div => (
            [
                Code::EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er,
                Code::VEX_Vdivps_ymm_ymm_ymmm256,
            ],
            false,
        ),
        BinaryInst::Min => (
            [
                Code::EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae,
                Code::VEX_Vminps_ymm_ymm_ymmm256,
            ],
            false,
        ),
        BinaryInst::Max => (
            [
                Code::EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae,
                Code::VEX_Vmaxps_ymm_ymm_ymmm256,
            ],
            false,
        ),
        BinaryInst::IntAdd => (
            [
                Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32,
                Code::VEX_Vpaddd_ymm_ymm_ymmm256,
            ],
            true,
        ),
        BinaryInst::IntSub => (
            [
                Code::EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32,
                Code::VEX_Vpsubd_ymm_ymm_ymmm256,
            ],
            false,
        ),
        BinaryInst::And => (
            [
                Code::EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32,
                Code::VEX_Vpand_ymm_ymm_ymmm256,
            ],
            true,
        ),
        BinaryInst::Or => (
            [
                Code::EVEX_Vpord_zmm_k1z_zmm_zmmm512b32,
                Code::VEX_Vpor_ymm_ymm_ymmm256,
            ],
            true,
        ),
        BinaryInst::Xor => (
            [
                Code::EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32,
                Code::VEX_Vpxor_ymm_ymm_ymmm256,
            ],
            true,
        ),
    }
}
