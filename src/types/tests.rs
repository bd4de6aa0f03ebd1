//! Names, codes and what is defined; the conversions of floats of 8 bits against their definition.

use super::*;

#[test]
fn codes_and_names_lead_back() {
    for (code, dtype) in (0u8..).zip(DataType::ALL) {
        assert_eq!(dtype as u8, code);
        assert_eq!(DataType::from_code(code), Some(dtype));
        assert_eq!(dtype.name().parse(), Ok(dtype));
        assert!(dtype.size_bytes().is_power_of_two() && dtype.size_bytes() <= 16);
        assert!(dtype.size_bytes() >= dtype.part().size_bytes());
    }
    assert_eq!(DataType::from_code(17), None);
    for (code, op) in (0u8..).zip(EACH) {
        assert_eq!(op.code(), code);
        let parsed: ReduceOp = op.to_string().parse().unwrap();
        assert_eq!(parsed, op);
        assert!(op.to_string().starts_with(ReduceOp::name_of_code(code)));
    }
    assert_eq!(ReduceOp::name_of_code(9), "unknown");
}

#[test]
fn names_of_torch_and_nccl_are_known() {
    for (name, dtype) in [
        ("bool", DataType::Bool),
        ("int16", DataType::I16),
        ("uint16", DataType::U16),
        ("float8_e4m3fn", DataType::F8E4M3),
        ("f8e4m3fn", DataType::F8E4M3),
        ("f8e4m3", DataType::F8E4M3),
        ("float8_e5m2", DataType::F8E5M2),
        ("f8e5m2", DataType::F8E5M2),
        ("complex64", DataType::C64),
        ("complex128", DataType::C128),
    ] {
        assert_eq!(name.parse(), Ok(dtype));
    }
    let text = "float8".parse::<DataType>().unwrap_err();
    assert!(text.contains("f64 f32") && text.contains("c128"), "{text}");
    let text = "xor".parse::<ReduceOp>().unwrap_err();
    assert!(text.contains("bitor bitxor"), "{text}");
}

#[test]
fn an_operator_that_a_type_does_not_have_is_answered_with_those_it_has() {
    let of = |op: ReduceOp, dtype| op.check_defined_for(dtype).unwrap_err();
    assert_eq!(
        of(ReduceOp::Avg, DataType::Bool),
        "avg is not defined for bool, which has sum prod min max bitand bitor bitxor"
    );
    assert_eq!(
        of(ReduceOp::Max, DataType::C64),
        "max is not defined for c64, which has sum avg premulsum"
    );
    assert_eq!(
        of(ReduceOp::BitOr, DataType::F8E5M2),
        "bitor is not defined for f8e5m2, which has sum prod min max avg premulsum"
    );
    assert_eq!(
        of(ReduceOp::PremulSum(0.5), DataType::U16),
        "premulsum:0.5 is not defined for u16, which has sum prod min max avg bitand bitor bitxor"
    );
    for dtype in DataType::ALL {
        let defined = EACH.iter().filter(|op| op.is_defined_for(dtype)).count();
        let wanted = match dtype {
            DataType::Bool => 7,
            DataType::C64 | DataType::C128 => 3,
            _ if dtype.is_float() => 6,
            _ => 8,
        };
        assert_eq!(defined, wanted, "{dtype}");
    }
}

#[test]
fn any_byte_but_zero_is_true() {
    for byte in 0..=u8::MAX {
        let value = Bool::from_bits(byte);
        assert_eq!(bool::from(value), byte != 0);
        assert_eq!(value, Bool::from(byte != 0));
        assert_eq!(value.to_bits(), byte);
    }
    assert_eq!(Bool::from(true).to_bits(), 1);
    assert_eq!(format!("{:?}", Bool::default()), "false");
}

/// A format by its definition: `(-1)^s * 2^(e - bias) * 1.m`, subnormal where e is 0.
struct Format {
    mantissa_bits: u32,
    bias: i32,
    /// The bits of the greatest finite magnitude.
    greatest: u8,
    /// The bits of all magnitudes beyond it.
    overflow: u8,
    widen: fn(u8) -> f32,
    narrow: fn(f32) -> u8,
}

const FORMATS: [Format; 2] = [
    Format {
        mantissa_bits: 3,
        bias: 7,
        greatest: 0x7e,
        overflow: 0x7f,
        widen: |bits| F8E4M3::from_bits(bits).to_f32(),
        narrow: |value| F8E4M3::from_f32(value).to_bits(),
    },
    Format {
        mantissa_bits: 2,
        bias: 15,
        greatest: 0x7b,
        overflow: 0x7c,
        widen: |bits| F8E5M2::from_bits(bits).to_f32(),
        narrow: |value| F8E5M2::from_f32(value).to_bits(),
    },
];

impl Format {
    /// The magnitude of these bits without a sign, as if the formula went on for ever.
    fn magnitude(&self, bits: u8) -> f64 {
        let steps = f64::from(1 << self.mantissa_bits);
        let mantissa = f64::from(bits % (1 << self.mantissa_bits)) / steps;
        match i32::from(bits >> self.mantissa_bits) {
            0 => mantissa * 2f64.powi(1 - self.bias),
            exponent => (1.0 + mantissa) * 2f64.powi(exponent - self.bias),
        }
    }

    /// The bits of the nearest magnitude, of two equally near ones the even one.
    fn nearest(&self, value: f64) -> u8 {
        if value >= self.magnitude(self.greatest + 1) {
            return self.overflow;
        }
        let distance = |bits: u8| (self.magnitude(bits) - value).abs();
        let all = 0..=self.greatest + 1;
        let nearest = all.min_by(|a, b| {
            let by_distance = distance(*a).total_cmp(&distance(*b));
            by_distance.then((a % 2).cmp(&(b % 2)))
        });
        match nearest.unwrap() {
            bits if bits <= self.greatest => bits,
            _ => self.overflow,
        }
    }

    fn check(&self, value: f32) {
        let wanted = self.nearest(f64::from(value));
        assert_eq!((self.narrow)(value), wanted, "{value:e}");
        assert_eq!((self.narrow)(-value), wanted | 0x80, "-{value:e}");
    }
}

#[test]
fn all_floats_of_8_bits_are_what_their_bits_say() {
    for format in &FORMATS {
        for bits in 0..=u8::MAX {
            let got = (format.widen)(bits);
            let (sign, magnitude) = (bits >> 7, bits & 0x7f);
            assert_eq!(got.is_sign_negative(), sign == 1, "{bits:#x}");
            if magnitude <= format.greatest {
                assert_eq!(
                    f64::from(got.abs()),
                    format.magnitude(magnitude),
                    "{bits:#x}"
                );
                assert_eq!((format.narrow)(got), bits);
            } else if magnitude == 0x7c && format.bias == 15 {
                assert_eq!(got.abs(), f32::INFINITY);
                assert_eq!((format.narrow)(got), bits);
            } else {
                assert!(got.is_nan(), "{bits:#x}");
                assert_eq!((format.narrow)(got), sign << 7 | 0x7f);
            }
        }
    }
    assert!(F8E4M3::from_bits(0xff).is_nan() && !F8E4M3::from_bits(0xfe).is_nan());
    assert!(F8E5M2::from_bits(0xfd).is_nan() && !F8E5M2::from_bits(0xfc).is_nan());
}

#[test]
fn numbers_near_every_value_and_every_tie_are_rounded_to_nearest_even() {
    for format in &FORMATS {
        for bits in 0..=format.greatest {
            let (low, high) = (format.magnitude(bits), format.magnitude(bits + 1));
            for middle in [low, (low + high) / 2.0, low + (high - low) / 4.0] {
                let middle = middle as f32;
                let near = [middle, middle.next_up(), middle.next_down().max(0.0)];
                near.into_iter().for_each(|value| format.check(value));
            }
        }
        // All magnitudes of f32, the subnormal ones too, at a stride.
        for bits in (0..f32::INFINITY.to_bits()).step_by(49_999) {
            format.check(f32::from_bits(bits));
        }
        format.check(f32::MAX);
        assert_eq!((format.narrow)(f32::INFINITY), format.overflow);
        assert_eq!((format.narrow)(f32::NEG_INFINITY), format.overflow | 0x80);
        for nan in [0x7f80_0001, 0x7fff_ffff, 0x7fc0_0000] {
            assert_eq!((format.narrow)(f32::from_bits(nan)), 0x7f);
            assert_eq!((format.narrow)(f32::from_bits(nan | 1 << 31)), 0xff);
        }
    }
}

#[test]
fn values_that_were_worked_out_by_hand_have_these_bits() {
    for (value, e4m3, e5m2) in [
        (1.0f32, 0x38, 0x3c),
        (-0.0, 0x80, 0x80),
        (448.0, 0x7e, 0x5f),
        (464.0, 0x7e, 0x5f),
        (465.0, 0x7f, 0x5f),
        (57344.0, 0x7f, 0x7b),
        (61440.0, 0x7f, 0x7c),
        (f32::INFINITY, 0x7f, 0x7c),
        (0.001953125, 0x01, 0x18),
        (0.0009765625, 0x00, 0x14),
        (1.525_878_9e-5, 0x00, 0x01),
        (0.3, 0x2a, 0x35),
    ] {
        assert_eq!(F8E4M3::from_f32(value).to_bits(), e4m3, "{value} as e4m3");
        assert_eq!(F8E5M2::from_f32(value).to_bits(), e5m2, "{value} as e5m2");
    }
}
