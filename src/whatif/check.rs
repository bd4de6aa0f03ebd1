//! What a [`WhatIf`] may have in its fields.

use super::model::{Members, WhatIf};
use crate::error::{Error, Result};

impl WhatIf {
    /// Members of the ring; an error if a field is out of range.
    pub(super) fn count_members(&self) -> Result<u32> {
        let check = |what: &str, value: f64, is_good: bool, allowed: &str| match is_good {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{what} is {value}; allowed: {allowed}"
            ))),
        };
        let above = "more than 0, or infinity";
        let bits = self.bits_per_second;
        check("the bandwidth", bits, bits > 0.0, above)?;
        let latency = self.latency_us;
        let is_good = latency >= 0.0 && latency.is_finite();
        check("the latency in us", latency, is_good, "0 or more")?;
        let ratio = self.compression;
        let is_good = ratio >= 1.0 && ratio.is_finite();
        check("the compression", ratio, is_good, "1 (none) or more")?;
        let part = self.link_share;
        let is_good = part > 0.0 && part <= 1.0;
        check(
            "the share of the link",
            part,
            is_good,
            "more than 0, at most 1",
        )?;
        let packing = self.packing_bytes_per_second;
        check("the speed of packing", packing, packing > 0.0, above)?;
        let (least, most) = self.errors;
        let is_good = least > 0.0 && least <= most && most.is_finite();
        let allowed = format!("more than 0, and at most the other, which is {most}");
        check("the least error", least, is_good, &allowed)?;
        self.algorithm.check()?;
        for (what, value) in [
            ("the time of an operation in us", self.operation_us),
            ("the time of a cycle in us", self.cycle_us),
            ("the slowing", self.slowing),
            ("the spread of times", self.spread),
        ] {
            let is_good = value >= 0.0 && value.is_finite();
            check(what, value, is_good, "0 or more")?;
        }
        check(
            "the number of GPUs",
            self.gpus.into(),
            self.gpus > 0,
            "1 or more",
        )?;
        let Members::Servers {
            gpus_per_server: each,
            inside_bits_per_second: inside,
        } = self.members
        else {
            return Ok(self.gpus);
        };
        check("the bandwidth inside a server", inside, inside > 0.0, above)?;
        let is_good = each > 0 && self.gpus.is_multiple_of(each);
        let allowed = format!("a divisor of the {} GPUs", self.gpus);
        check(
            "the number of GPUs per server",
            each.into(),
            is_good,
            &allowed,
        )?;
        Ok(self.gpus / each)
    }
}
