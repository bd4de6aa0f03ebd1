//! The words of the library: ranks, element types, reduction operators, collectives.
//!
//! Plain data only. What an operator does to bytes is in [`crate::kernel`]. The element types that
//! Rust does not have are in the files of the folder.

mod boolean;
mod float8;

pub use boolean::Bool;
pub use float8::{F8E4M3, F8E5M2};
use std::fmt;
use std::str::FromStr;

/// Position of a process in a communicator, `0..ranks`.
pub type Rank = u32;

/// Type of one element.
///
/// | kind | names | in Rust | operators |
/// |---|---|---|---|
/// | floats | `f64 f32` | `f64`, `f32` | sum prod min max avg premulsum |
/// | | `f16 bf16` | [`half::f16`], [`half::bf16`] | as above |
/// | | `f8e4m3 f8e5m2` | [`F8E4M3`], [`F8E5M2`] | as above |
/// | integers | `i8 i16 i32 i64` | `i8` to `i64` | sum prod min max avg bitand bitor bitxor |
/// | | `u8 u16 u32 u64` | `u8` to `u64` | as above |
/// | truth values | `bool` | [`Bool`] | sum prod min max bitand bitor bitxor |
/// | complex numbers | `c64 c128` | [`num_complex::Complex`] | sum avg premulsum |
///
/// Everything that moves elements and does not combine them (broadcasts, gathers, scatters,
/// all-to-alls, sends) works with every type. [`ReduceOp`] says what the operators do.
///
/// ```
/// use linerate::{DataType, ReduceOp};
/// let dtype: DataType = "float8_e4m3fn".parse().unwrap();
/// assert_eq!((dtype, dtype.name(), dtype.size_bytes()), (DataType::F8E4M3, "f8e4m3", 1));
/// assert!(ReduceOp::Avg.is_defined_for(dtype) && !ReduceOp::BitXor.is_defined_for(dtype));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// IEEE binary64.
    F64 = 0,
    /// IEEE binary32.
    F32 = 1,
    /// IEEE binary16; accumulated in f32 within a step, rounded once per hop.
    F16 = 2,
    /// bfloat16; accumulated in f32 within a step, rounded once per hop.
    Bf16 = 3,
    /// Signed 8-bit integer.
    I8 = 4,
    /// Unsigned 8-bit integer.
    U8 = 5,
    /// Signed 32-bit integer.
    I32 = 6,
    /// Unsigned 32-bit integer.
    U32 = 7,
    /// Signed 64-bit integer.
    I64 = 8,
    /// Unsigned 64-bit integer.
    U64 = 9,
    /// A truth value in one byte: false is 0, true is any other byte, and 1 in results.
    Bool = 10,
    /// Signed 16-bit integer.
    I16 = 11,
    /// Unsigned 16-bit integer.
    U16 = 12,
    /// 8-bit float with 4 bits of exponent and 3 of mantissa, without infinities (e4m3fn of OCP
    /// and torch); accumulated in f32 within a step, rounded once per hop.
    F8E4M3 = 13,
    /// 8-bit float with 5 bits of exponent and 2 of mantissa; accumulated in f32 within a step,
    /// rounded once per hop.
    F8E5M2 = 14,
    /// Complex number: two [`DataType::F32`], real part first.
    C64 = 15,
    /// Complex number: two [`DataType::F64`], real part first.
    C128 = 16,
}

impl DataType {
    /// Every type, in the order of their codes.
    pub const ALL: [DataType; 17] = [
        DataType::F64,
        DataType::F32,
        DataType::F16,
        DataType::Bf16,
        DataType::I8,
        DataType::U8,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::Bool,
        DataType::I16,
        DataType::U16,
        DataType::F8E4M3,
        DataType::F8E5M2,
        DataType::C64,
        DataType::C128,
    ];

    /// Bytes of one element: a power of two, at most 16.
    pub const fn size_bytes(self) -> usize {
        match self {
            DataType::C128 => 16,
            DataType::F64 | DataType::I64 | DataType::U64 | DataType::C64 => 8,
            DataType::F32 | DataType::I32 | DataType::U32 => 4,
            DataType::F16 | DataType::Bf16 | DataType::I16 | DataType::U16 => 2,
            DataType::I8 | DataType::U8 | DataType::Bool => 1,
            DataType::F8E4M3 | DataType::F8E5M2 => 1,
        }
    }

    /// Alignment of an element in bytes. A complex number is aligned as its parts are.
    pub const fn align_bytes(self) -> usize {
        self.part().size_bytes()
    }

    /// Whether values are real numbers in floating point.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DataType::F64
                | DataType::F32
                | DataType::F16
                | DataType::Bf16
                | DataType::F8E4M3
                | DataType::F8E5M2
        )
    }

    /// Whether values are complex numbers.
    pub const fn is_complex(self) -> bool {
        matches!(self, DataType::C64 | DataType::C128)
    }

    /// The type of the real and of the imaginary part. A type that is not complex is its own part.
    pub(crate) const fn part(self) -> DataType {
        match self {
            DataType::C64 => DataType::F32,
            DataType::C128 => DataType::F64,
            real => real,
        }
    }

    /// Short name as flags and tables spell it (`f32`, `bf16`, ...).
    pub const fn name(self) -> &'static str {
        match self {
            DataType::F64 => "f64",
            DataType::F32 => "f32",
            DataType::F16 => "f16",
            DataType::Bf16 => "bf16",
            DataType::I8 => "i8",
            DataType::U8 => "u8",
            DataType::I32 => "i32",
            DataType::U32 => "u32",
            DataType::I64 => "i64",
            DataType::U64 => "u64",
            DataType::Bool => "bool",
            DataType::I16 => "i16",
            DataType::U16 => "u16",
            DataType::F8E4M3 => "f8e4m3",
            DataType::F8E5M2 => "f8e5m2",
            DataType::C64 => "c64",
            DataType::C128 => "c128",
        }
    }

    /// The type with this code, as records on the wire carry it.
    pub fn from_code(code: u8) -> Option<DataType> {
        DataType::ALL.get(code as usize).copied()
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DataType {
    type Err = String;

    /// Accepts our short names, those of nccl-tests (`float`, `half`, `bfloat16`, `int32`,
    /// `f8e4m3`, ...) and those of torch (`float8_e4m3fn`, `complex64`, ...).
    fn from_str(text: &str) -> Result<Self, String> {
        let found = match text {
            "f64" | "double" | "float64" => DataType::F64,
            "f32" | "float" | "float32" => DataType::F32,
            "f16" | "half" | "float16" => DataType::F16,
            "bf16" | "bfloat16" => DataType::Bf16,
            "i8" | "int8" => DataType::I8,
            "u8" | "uint8" => DataType::U8,
            "i32" | "int32" => DataType::I32,
            "u32" | "uint32" => DataType::U32,
            "i64" | "int64" => DataType::I64,
            "u64" | "uint64" => DataType::U64,
            "bool" => DataType::Bool,
            "i16" | "int16" => DataType::I16,
            "u16" | "uint16" => DataType::U16,
            "f8e4m3" | "f8e4m3fn" | "float8_e4m3fn" => DataType::F8E4M3,
            "f8e5m2" | "float8_e5m2" => DataType::F8E5M2,
            "c64" | "complex64" => DataType::C64,
            "c128" | "complex128" => DataType::C128,
            _ => {
                let names = DataType::ALL.map(DataType::name).join(" ");
                return Err(format!("unknown type '{text}': one of {names}"));
            }
        };
        Ok(found)
    }
}

/// Reduction operator.
///
/// | | floats | integers | [`Bool`] | complex numbers |
/// |---|---|---|---|---|
/// | `Sum` | sum | sum | or | sum |
/// | `Prod` | product | product | and | - |
/// | `Min` | least | least | and | - |
/// | `Max` | greatest | greatest | or | - |
/// | `Avg` | sum / ranks | sum / ranks | - | sum / ranks |
/// | `PremulSum` | sum of factor * value | - | - | sum of factor * value |
/// | `BitAnd` | - | bitwise and | and | - |
/// | `BitOr` | - | bitwise or | or | - |
/// | `BitXor` | - | bitwise exclusive or | exclusive or | - |
///
/// An operator that the element type does not have is an error that names those that it has. With
/// one rank nothing is combined: the result is the input, bit by bit; with `PremulSum` it is the
/// input times the factor.
///
/// Integers wrap. `Min` and `Max` on floats: NaN wins, and -0 is less than +0. `Avg` is a sum that
/// is divided once, at the end, by the number of ranks (integers truncate toward zero).
///
/// Sums of floats may overflow, those of `Avg` too: to infinity, or to NaN with [`F8E4M3`], which
/// has no infinity. The algorithm decides where: f16, bf16 and 8-bit floats are added in f32 and
/// rounded to the type whenever a partial sum is stored or sent. So the average of three 60000 in
/// f16 is 60000 where one rank adds all three, and infinite where partial sums travel. With every
/// algorithm and over every transport f16 is safe where ranks * the largest magnitude is at most
/// 32752, half of what the type holds (up to 1000 ranks: rounding may enlarge a sum). Beyond that,
/// scale first: `PremulSum(0.25)` of three ranks gives three quarters of their average, and a
/// factor that is a power of two rounds nothing but subnormal values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Least value.
    Min,
    /// Greatest value.
    Max,
    /// Sum divided once, at the end, by the number of ranks. The sum may overflow: see above.
    Avg,
    /// Each rank's input is multiplied by that rank's own factor before the sum. The product is
    /// rounded to the element type. Floats and complex numbers only.
    PremulSum(f64),
    /// Bitwise and of integers, and of truth values.
    BitAnd,
    /// Bitwise or of integers, or of truth values.
    BitOr,
    /// Bitwise exclusive or of integers, exclusive or of truth values.
    BitXor,
}

impl ReduceOp {
    /// What is done to two values at a time.
    pub const fn combine(self) -> Combine {
        match self {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => Combine::Sum,
            ReduceOp::Prod => Combine::Prod,
            ReduceOp::Min => Combine::Min,
            ReduceOp::Max => Combine::Max,
            ReduceOp::BitAnd => Combine::BitAnd,
            ReduceOp::BitOr => Combine::BitOr,
            ReduceOp::BitXor => Combine::BitXor,
        }
    }

    /// The factor of a premultiplied sum.
    pub const fn factor(self) -> Option<f64> {
        match self {
            ReduceOp::PremulSum(factor) => Some(factor),
            _ => None,
        }
    }

    /// Code in records on the wire; factors may differ between ranks and are not part of it.
    pub const fn code(self) -> u8 {
        match self {
            ReduceOp::Sum => 0,
            ReduceOp::Prod => 1,
            ReduceOp::Min => 2,
            ReduceOp::Max => 3,
            ReduceOp::Avg => 4,
            ReduceOp::PremulSum(_) => 5,
            ReduceOp::BitAnd => 6,
            ReduceOp::BitOr => 7,
            ReduceOp::BitXor => 8,
        }
    }

    /// Name of the operator with this code.
    pub const fn name_of_code(code: u8) -> &'static str {
        match code {
            0 => "sum",
            1 => "prod",
            2 => "min",
            3 => "max",
            4 => "avg",
            5 => "premulsum",
            6 => "bitand",
            7 => "bitor",
            8 => "bitxor",
            _ => "unknown",
        }
    }

    /// Whether the operator exists for the type: see the table of [`ReduceOp`].
    pub const fn is_defined_for(self, dtype: DataType) -> bool {
        let has_bits = !dtype.is_float() && !dtype.is_complex();
        match self {
            ReduceOp::Sum => true,
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::Max => !dtype.is_complex(),
            ReduceOp::Avg => !matches!(dtype, DataType::Bool),
            ReduceOp::PremulSum(_) => dtype.is_float() || dtype.is_complex(),
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => has_bits,
        }
    }

    /// An error unless the operator exists for the type. Its text is a part of a sentence.
    pub(crate) fn check_defined_for(self, dtype: DataType) -> Result<(), String> {
        if self.is_defined_for(dtype) {
            return Ok(());
        }
        let known = (EACH.into_iter()).filter(|op| op.is_defined_for(dtype));
        let names: Vec<_> = known.map(|op| ReduceOp::name_of_code(op.code())).collect();
        Err(format!(
            "{self} is not defined for {dtype}, which has {}",
            names.join(" ")
        ))
    }
}

/// Every operator, in the order of their codes.
const EACH: [ReduceOp; 9] = [
    ReduceOp::Sum,
    ReduceOp::Prod,
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::Avg,
    ReduceOp::PremulSum(1.0),
    ReduceOp::BitAnd,
    ReduceOp::BitOr,
    ReduceOp::BitXor,
];

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReduceOp::PremulSum(factor) => write!(f, "premulsum:{factor}"),
            other => f.write_str(ReduceOp::name_of_code(other.code())),
        }
    }
}

impl FromStr for ReduceOp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(factor) = text.strip_prefix("premulsum:") {
            return factor
                .parse()
                .map(ReduceOp::PremulSum)
                .map_err(|_| format!("premulsum needs a number, not '{factor}': premulsum:0.5"));
        }
        Ok(match text {
            "sum" => ReduceOp::Sum,
            "prod" => ReduceOp::Prod,
            "min" => ReduceOp::Min,
            "max" => ReduceOp::Max,
            "avg" => ReduceOp::Avg,
            "mulsum" | "premulsum" => ReduceOp::PremulSum(2.0),
            "bitand" => ReduceOp::BitAnd,
            "bitor" => ReduceOp::BitOr,
            "bitxor" => ReduceOp::BitXor,
            _ => {
                return Err(format!(
                    "unknown operator '{text}': one of sum prod min max avg premulsum[:FACTOR] bitand bitor bitxor"
                ));
            }
        })
    }
}

/// What a kernel does to two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Combine {
    /// a + b
    Sum,
    /// a * b
    Prod,
    /// NaN if either is, else the lesser; -0 < +0.
    Min,
    /// NaN if either is, else the greater; -0 < +0.
    Max,
    /// a & b, of integers and truth values.
    BitAnd,
    /// a | b, of integers and truth values.
    BitOr,
    /// a ^ b, of integers and truth values.
    BitXor,
}

/// What a kernel does to the last value before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// Nothing.
    None,
    /// Divide by this many ranks: floats in their accumulator's precision, integers toward zero.
    Divide(u32),
}

/// A collective or point-to-point operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Collective {
    /// `count` elements in, `count` out: the reduction of all inputs, on every rank.
    AllReduce = 0,
    /// `ranks * count` in, `count` out: rank r gets the reduction of block r.
    ReduceScatter = 1,
    /// `count` in, `ranks * count` out: block r is rank r's input.
    AllGather = 2,
    /// Like `AllGather` with a length per rank.
    AllGatherV = 3,
    /// `count` elements from the root to all.
    Broadcast = 4,
    /// `count` elements of all ranks reduced to the root.
    Reduce = 5,
    /// `count` in, `ranks * count` out on the root.
    Gather = 6,
    /// `ranks * count` in on the root, `count` out.
    Scatter = 7,
    /// `ranks * count` in and out: block r goes to rank r.
    AllToAll = 8,
    /// Like `AllToAll` with a length per pair. Never in place: a part that arrives would lie on
    /// parts that are still to be sent.
    AllToAllV = 9,
    /// No data; no rank leaves before all have come.
    Barrier = 10,
    /// A grouped set of sends and receives between pairs.
    SendRecv = 11,
    /// Like `Gather` with a length per rank.
    GatherV = 12,
    /// Like `Scatter` with a length per rank.
    ScatterV = 13,
    /// Like `ReduceScatter` with a length per rank.
    ReduceScatterV = 14,
}

impl Collective {
    /// Every collective, in the order of their codes.
    pub const ALL: [Collective; 15] = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::AllGatherV,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::AllToAllV,
        Collective::Barrier,
        Collective::SendRecv,
        Collective::GatherV,
        Collective::ScatterV,
        Collective::ReduceScatterV,
    ];

    /// Name as the command line spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "allreduce",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllGather => "all-gather",
            Collective::AllGatherV => "all-gatherv",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllToAll => "all-to-all",
            Collective::AllToAllV => "all-to-allv",
            Collective::Barrier => "barrier",
            Collective::SendRecv => "sendrecv",
            Collective::GatherV => "gatherv",
            Collective::ScatterV => "scatterv",
            Collective::ReduceScatterV => "reduce-scatterv",
        }
    }

    /// The collective with this code, as records on the wire carry it.
    pub fn from_code(code: u8) -> Option<Collective> {
        Collective::ALL.get(code as usize).copied()
    }

    /// Whether values are combined, so that an operator matters.
    pub const fn is_reducing(self) -> bool {
        matches!(
            self,
            Collective::AllReduce
                | Collective::ReduceScatter
                | Collective::ReduceScatterV
                | Collective::Reduce
        )
    }

    /// Whether one rank is special.
    pub const fn is_rooted(self) -> bool {
        matches!(
            self,
            Collective::Broadcast
                | Collective::Reduce
                | Collective::Gather
                | Collective::GatherV
                | Collective::Scatter
                | Collective::ScatterV
        )
    }

    /// Whether every rank has a part of its own length, which all ranks know.
    pub const fn has_part_lengths(self) -> bool {
        matches!(
            self,
            Collective::AllGatherV
                | Collective::GatherV
                | Collective::ScatterV
                | Collective::ReduceScatterV
        )
    }

    /// Whether a buffer holds a part for each rank, and not one vector.
    pub const fn has_parts(self) -> bool {
        !matches!(
            self,
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce
        )
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Collective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |name: &str| name.replace(['-', '_'], "");
        let wanted = plain(text);
        Collective::ALL
            .into_iter()
            .find(|c| plain(c.name()) == wanted)
            .ok_or_else(|| {
                let names: Vec<_> = Collective::ALL.iter().map(|c| c.name()).collect();
                format!("unknown collective '{text}': one of {}", names.join(" "))
            })
    }
}

#[cfg(test)]
mod tests;
