//! x
pub struct CheckError;
pub struct CheckReport;
pub fn check() {}
