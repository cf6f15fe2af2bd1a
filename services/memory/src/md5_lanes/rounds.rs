//! The 64 steps of MD5 on one block, written once for words of any kind: one lane or sixteen.
//!
//! It is a macro, because a function that is generic over the words would not have the target
//! features of its caller, and its operations would become calls.

/// The sines of RFC 1321.
pub(super) const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

/// Advances `$state`, four words, by a block of sixteen words. The operations are macros or
/// functions: a sum, a word of a constant, a rotation (left by its first
/// parameter, which is right by its second), and the four functions of the RFC.
macro_rules! rounds {
    ($state:expr, $words:expr, $add:ident, $constant:ident, $rotate:ident, [$f:ident, $g:ident, $h:ident, $i:ident]) => {{
        let words = &$words;
        let [mut a, mut b, mut c, mut d] = $state;
        macro_rules! step {
            ($function:ident, $at:expr, $word:expr, $turn:literal) => {
                let sum = $add(
                    a,
                    $add(
                        $constant($crate::md5_lanes::rounds::SINES[$at]),
                        words[$word % 16],
                    ),
                );
                let sum = $add(sum, $function(b, c, d));
                (a, b, c, d) = (d, $add(b, $rotate::<$turn, { 32 - $turn }>(sum)), b, c);
            };
        }
        for at in [0, 4, 8, 12] {
            step!($f, at, at, 7);
            step!($f, at + 1, at + 1, 12);
            step!($f, at + 2, at + 2, 17);
            step!($f, at + 3, at + 3, 22);
        }
        for at in [0, 4, 8, 12] {
            step!($g, 16 + at, 5 * at + 1, 5);
            step!($g, 17 + at, 5 * at + 6, 9);
            step!($g, 18 + at, 5 * at + 11, 14);
            step!($g, 19 + at, 5 * at + 16, 20);
        }
        for at in [0, 4, 8, 12] {
            step!($h, 32 + at, 3 * at + 5, 4);
            step!($h, 33 + at, 3 * at + 8, 11);
            step!($h, 34 + at, 3 * at + 11, 16);
            step!($h, 35 + at, 3 * at + 14, 23);
        }
        for at in [0, 4, 8, 12] {
            step!($i, 48 + at, 7 * at, 6);
            step!($i, 49 + at, 7 * at + 7, 10);
            step!($i, 50 + at, 7 * at + 14, 15);
            step!($i, 51 + at, 7 * at + 21, 21);
        }
        let [a_before, b_before, c_before, d_before] = $state;
        [
            $add(a_before, a),
            $add(b_before, b),
            $add(c_before, c),
            $add(d_before, d),
        ]
    }};
}

pub(super) use rounds;
