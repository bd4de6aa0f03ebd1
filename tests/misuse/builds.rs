//! What the programs that do not build do wrong, done right.
use linerate::transport::{Region, Transport, View};
use linerate::{Buffer, Collective, Communicator, DataType, ReduceOp, Result};

fn collectives(communicator: &Communicator) -> Result<()> {
    let mut slice = vec![0.0f32; 8];
    communicator.all_reduce(&mut slice, ReduceOp::Sum)?;
    communicator.all_reduce_into(&[1.0f32; 8], &mut slice, ReduceOp::Sum)?;
    let buffer = Buffer::from_vec(slice);
    buffer.as_mut_slice()?[0] = 1.0;
    let mut operation = communicator.start_all_reduce(&buffer, ReduceOp::Sum)?;
    operation.test()?;
    operation.wait()?;
    let sum = communicator.collective(Collective::AllReduce, DataType::F32, 8);
    sum.input(&buffer).output(&buffer).run()
}

fn message(transport: &mut dyn Transport, region: &Region) {
    let view: View = region.view();
    // SAFETY: the region's owner keeps it until the transport has ended.
    unsafe {
        view.store(0, 1u32);
        transport.post_send(0, 1, 0, view, 2).unwrap();
    }
}

fn main() {
    let _ = (collectives, message);
}
