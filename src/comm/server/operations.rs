//! Operations that nobody waits for by themselves.

use super::shared::Shared;
use crate::comm::Operation;
use crate::error::Result;

/// Takes out the operations that have ended. Gives the first error.
pub fn end_some(shared: &Shared, operations: &mut Vec<Operation>) -> Result<()> {
    if operations.is_empty() {
        return Ok(());
    }
    let driving = shared.comm.driving()?;
    driving.drive_then(|engine| {
        (operations.iter_mut()).for_each(|operation| operation.look(engine));
    });
    let mut result = Ok(());
    operations.retain(|operation| {
        if operation.is_over() && result.is_ok() {
            result = operation.result();
        }
        !operation.is_over()
    });
    result
}
