//! [`Value`]: what the checker computes with instead of a number.

use super::fault::Fault;
use crate::prng::mix;
use crate::types::Rank;

/// One element: which input element it is, of which ranks, and how they were combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Set of ranks whose input is in it, one bit each; 0: never written.
    pub contributors: u64,
    /// Hash of the expression: equal if the operands of one operation are swapped, and different if
    /// operations are grouped in another way.
    pub tree: u64,
    /// Index in the input of each contributor.
    pub element: u32,
    /// Whether the contributors were multiplied by their factors.
    pub is_premultiplied: bool,
    /// Whether the operator's last act was applied.
    pub is_finished: bool,
}

impl Value {
    /// Memory that nobody has written.
    pub const UNDEFINED: Value = Value {
        contributors: 0,
        tree: 0,
        element: 0,
        is_premultiplied: false,
        is_finished: false,
    };

    /// Element `element` of a rank's input.
    pub fn input(rank: Rank, element: u64) -> Value {
        Value {
            contributors: 1 << rank,
            tree: mix(u64::from(rank) + 1),
            element: element as u32,
            ..Value::UNDEFINED
        }
    }

    /// Whether it was ever written.
    pub fn is_defined(&self) -> bool {
        self.contributors != 0
    }

    /// Multiplied by the factor of its rank.
    pub(super) fn premultiplied(self) -> Result<Value, (Fault, String)> {
        if self.contributors.count_ones() != 1 || self.is_premultiplied || self.is_finished {
            return Err((
                Fault::Premultiplied,
                format!("multiplied by the factor, but it is {self}"),
            ));
        }
        Ok(Value {
            is_premultiplied: true,
            ..self
        })
    }

    /// Combined with a value of other ranks.
    pub(super) fn combined(self, other: Value) -> Result<Value, (Fault, String)> {
        if self.contributors & other.contributors != 0 {
            return Err((
                Fault::Combined,
                format!("counted twice: {self} and {other}"),
            ));
        }
        if self.element != other.element {
            return Err((
                Fault::Combined,
                format!("different elements: {self} and {other}"),
            ));
        }
        if self.is_finished || other.is_finished {
            return Err((
                Fault::Finished,
                format!("combined after the end: {self} and {other}"),
            ));
        }
        if self.is_premultiplied != other.is_premultiplied {
            return Err((
                Fault::Premultiplied,
                format!("only one of {self} and {other}"),
            ));
        }
        Ok(Value {
            contributors: self.contributors | other.contributors,
            tree: mix(mix(self.tree).wrapping_add(mix(other.tree))),
            ..self
        })
    }

    /// Rounded to the element type, as at the end of a step that combines.
    pub(super) fn rounded(self) -> Value {
        Value {
            tree: mix(self.tree ^ 0x726f_756e_6465_6421),
            ..self
        }
    }

    /// This value after the operator's last act.
    pub(super) fn finished(self) -> Result<Value, (Fault, String)> {
        if self.is_finished {
            return Err((Fault::Finished, format!("finished twice: {self}")));
        }
        Ok(Value {
            is_finished: true,
            ..self
        })
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.is_defined() {
            return f.write_str("nothing");
        }
        let ranks: Vec<u32> = (0..64)
            .filter(|r| self.contributors >> r & 1 == 1)
            .collect();
        write!(f, "input element {} of ranks {ranks:?}", self.element)?;
        if self.is_premultiplied {
            f.write_str(", premultiplied")?;
        }
        if self.is_finished {
            f.write_str(", finished")?;
        }
        Ok(())
    }
}
