//! New weights from gradients, by the rules of SGD, SGD with momentum, and Adam.
//!
//! A [`Rule`] says what becomes of one weight, in f32 and without fused multiply-add. `simd` has
//! the loops, which are compiled for several instruction sets and give the same bits on each.

use super::isa::Isa;
use super::reduction::Stores;
use super::{check_same_or_disjoint, check_whole, simd};
use crate::memory::View;
use crate::types::DataType;

/// What becomes of one weight.
pub(super) trait Rule: Copy {
    /// How many states a weight has.
    const STATES: usize;
    /// The new weight and the new states. States beyond [`Rule::STATES`] have no meaning.
    fn apply(self, gradient: f32, weight: f32, states: [f32; 2]) -> (f32, [f32; 2]);
}

/// What is added to a gradient before anything else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Intake {
    /// The gradient is multiplied by it.
    pub scale: f32,
    /// How much of the weight is added then. 0: none, even of a weight that is not finite.
    pub decay: f32,
}

impl Intake {
    #[inline(always)]
    fn take(self, gradient: f32, weight: f32) -> f32 {
        let scaled = gradient * self.scale;
        match self.decay == 0.0 {
            true => scaled,
            false => scaled + self.decay * weight,
        }
    }
}

/// `w - rate * d`, where `d` is the gradient after the intake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Descent {
    pub intake: Intake,
    pub rate: f32,
}

impl Rule for Descent {
    const STATES: usize = 0;

    #[inline(always)]
    fn apply(self, gradient: f32, weight: f32, states: [f32; 2]) -> (f32, [f32; 2]) {
        let taken = self.intake.take(gradient, weight);
        (weight - self.rate * taken, states)
    }
}

/// `b = momentum * b + d`, then `w - rate * b`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    pub intake: Intake,
    pub rate: f32,
    pub momentum: f32,
    /// There is no state yet: `b = d`, whatever the state holds.
    pub is_first: bool,
}

impl Rule for Momentum {
    const STATES: usize = 1;

    #[inline(always)]
    fn apply(self, gradient: f32, weight: f32, states: [f32; 2]) -> (f32, [f32; 2]) {
        let taken = self.intake.take(gradient, weight);
        let buffer = match self.is_first {
            true => taken,
            false => self.momentum * states[0] + taken,
        };
        (weight - self.rate * buffer, [buffer, 0.0])
    }
}

/// `m = old[0] * m + new[0] * d`, `v = old[1] * v + new[1] * d * d`, then
/// `w * keep - rate * m / (sqrt(v) / root + epsilon)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    pub intake: Intake,
    pub rate: f32,
    pub keep: f32,
    pub old: [f32; 2],
    pub new: [f32; 2],
    pub root: f32,
    pub epsilon: f32,
    /// There is no state yet: both moments are taken as 0, whatever the states hold.
    pub is_first: bool,
}

impl Rule for Moments {
    const STATES: usize = 2;

    #[inline(always)]
    fn apply(self, gradient: f32, weight: f32, states: [f32; 2]) -> (f32, [f32; 2]) {
        let taken = self.intake.take(gradient, weight);
        let [mean, square] = match self.is_first {
            true => [0.0; 2],
            false => states,
        };
        let mean = self.old[0] * mean + self.new[0] * taken;
        let square = self.old[1] * square + self.new[1] * taken * taken;
        let divisor = square.sqrt() / self.root + self.epsilon;
        let moved = weight * self.keep - self.rate * mean / divisor;
        (moved, [mean, square])
    }
}

/// One of the rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AnyRule {
    /// SGD without state.
    Descent(Descent),
    /// SGD with one state.
    Momentum(Momentum),
    /// Adam and its kin, with two states.
    Moments(Moments),
}

impl AnyRule {
    fn states(&self) -> usize {
        match self {
            AnyRule::Descent(_) => Descent::STATES,
            AnyRule::Momentum(_) => Momentum::STATES,
            AnyRule::Moments(_) => Moments::STATES,
        }
    }
}

/// What an update reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// The gradients: f32, f16 or bf16.
    pub gradient: (DataType, View),
    /// The weights in f32.
    pub from: View,
    /// Where the new weights go in f32: the same range as `from`, or disjoint from it.
    pub to: View,
    /// The states in f32. Those that the rule does not have are not looked at ([`View::empty`]).
    pub states: [View; 2],
    /// Where the new weights go too, rounded to nearest even, as f16 or bf16.
    pub published: Option<(DataType, View)>,
}

impl Weights {
    /// How many there are; 0 if a view that counts is size-only.
    fn check(&self, states: usize) -> usize {
        let bytes = self.from.len_bytes();
        check_whole(DataType::F32, bytes);
        let count = bytes / size_of::<f32>();
        let (dtype, gradient) = self.gradient;
        assert!(
            matches!(dtype, DataType::F32 | DataType::F16 | DataType::Bf16),
            "gradients of {dtype}: they are f32, f16 or bf16"
        );
        let mut is_size_only = self.from.is_size_only();
        let mut check = |what: &str, dtype: DataType, view: View| {
            let expected = count * dtype.size_bytes();
            let given = view.len_bytes();
            assert!(
                given == expected,
                "an update of {count} weights: {what} of {given} bytes instead of {expected}"
            );
            is_size_only |= view.is_size_only();
        };
        check("gradients", dtype, gradient);
        check("new weights", DataType::F32, self.to);
        for state in &self.states[..states] {
            check("a state", DataType::F32, *state);
        }
        if let Some((dtype, view)) = self.published {
            assert!(
                matches!(dtype, DataType::F16 | DataType::Bf16),
                "published weights of {dtype}: they are f16 or bf16"
            );
            check("published weights", dtype, view);
        }
        if cfg!(debug_assertions) {
            self.check_places(states);
        }
        if is_size_only { 0 } else { count }
    }

    /// Asserts that nothing overlaps what is written.
    fn check_places(&self, states: usize) {
        check_same_or_disjoint(&self.from, &self.to);
        let written = (self.states[..states].iter()).chain(self.published.iter().map(|(_, to)| to));
        let mut others = vec![self.gradient.1, self.from, self.to];
        assert!(
            !self.gradient.1.overlaps(&self.to),
            "new weights overlap the gradient"
        );
        for view in written {
            assert!(
                !others.iter().any(|other| other.overlaps(view)),
                "a view that is written overlaps another"
            );
            others.push(*view);
        }
    }
}

/// Applies a rule to every weight. A size-only view makes the call do nothing, after the lengths
/// are checked.
///
/// # Panics
/// If lengths differ, or a type is none of those that [`Weights`] names.
pub fn update(rule: &AnyRule, weights: &Weights) {
    update_with(Isa::best_for(DataType::F32), Stores::Cached, rule, weights);
}

/// [`update`], but new weights that do not replace the old ones are written by streaming stores
/// where the CPU can; see [`super::reduce_streaming`]. From memory SGD is 1.2 times as fast so,
/// and 1.3 times with momentum (a shared AMD EPYC, one thread, 100 MB of weights). Adam's weights
/// are stored as by [`update`].
///
/// # Panics
/// As [`update`].
pub fn update_streaming(rule: &AnyRule, weights: &Weights) {
    update_with(
        Isa::best_for(DataType::F32),
        Stores::Streamed,
        rule,
        weights,
    );
}

/// [`update`] or [`update_streaming`] on a given instruction set.
pub(super) fn update_with(isa: Isa, stores: Stores, rule: &AnyRule, weights: &Weights) {
    let count = weights.check(rule.states());
    if count == 0 {
        return;
    }
    match *rule {
        AnyRule::Descent(rule) => simd::update(isa, stores, rule, weights, count),
        AnyRule::Momentum(rule) => simd::update(isa, stores, rule, weights, count),
        AnyRule::Moments(rule) => simd::update(isa, stores, rule, weights, count),
    }
}

/// Whether a gradient of f32, f16 or bf16 holds a NaN or an infinity. A size-only view holds none.
///
/// # Panics
/// If the type is another one, or the length is no multiple of its size.
pub fn has_nonfinite(dtype: DataType, view: View) -> bool {
    has_nonfinite_with(Isa::best_for(DataType::F32), dtype, view)
}

/// [`has_nonfinite`] on a given instruction set.
pub(super) fn has_nonfinite_with(isa: Isa, dtype: DataType, view: View) -> bool {
    check_whole(dtype, view.len_bytes());
    if view.is_size_only() {
        return false;
    }
    match dtype {
        DataType::F32 => simd::reaches(isa, view, i32::MAX, 0x7f80_0000),
        DataType::F16 => simd::reaches(isa, view, i16::MAX, 0x7c00),
        DataType::Bf16 => simd::reaches(isa, view, i16::MAX, 0x7f80),
        _ => panic!("a gradient of {dtype}: it is f32, f16 or bf16"),
    }
}
