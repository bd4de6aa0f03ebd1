//! Calls that come again on the same memory run another way than the first: the same bits must come
//! out.

use super::on_ranks;
use linerate::{Buffer, Collective, CollectiveBuilder, Communicator, DataType, ReduceOp};

/// A call on memory of its own.
struct Repeated<'a> {
    collective: Collective,
    dtype: DataType,
    builder: CollectiveBuilder<'a>,
    input: Buffer<u8>,
    output: Buffer<u8>,
}

/// Calls of `count` elements.
fn calls(comm: &Communicator, dtype: DataType, count: u64) -> Vec<Repeated<'_>> {
    let ranks = comm.ranks() as usize;
    let bytes = count as usize * dtype.size_bytes();
    let new = |parts: usize| comm.alloc::<u8>(parts * bytes).unwrap();
    let repeated = |collective, op, (input, output): (Buffer<u8>, Buffer<u8>)| {
        let root = match collective {
            Collective::Reduce => comm.ranks() - 1,
            _ => 0,
        };
        let builder = comm.collective(collective, dtype, count).op(op).root(root);
        Repeated {
            collective,
            dtype,
            builder: builder.input(&input).output(&output),
            input,
            output,
        }
    };
    let ops = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
    ];
    let mut calls = Vec::new();
    for op in ops {
        let in_place = new(1);
        let in_place = (in_place.clone(), in_place);
        calls.push(repeated(Collective::AllReduce, op, in_place));
        calls.push(repeated(Collective::AllReduce, op, (new(1), new(1))));
        calls.push(repeated(Collective::Reduce, op, (new(1), new(1))));
    }
    let copies = [
        (Collective::Broadcast, 1, 1),
        (Collective::AllGather, 1, ranks),
        (Collective::AllToAll, ranks, ranks),
    ];
    for (collective, input, output) in copies {
        let buffers = (new(input), new(output));
        calls.push(repeated(collective, ReduceOp::Sum, buffers));
    }
    calls
}

/// Bytes of every kind of number, NaN and subnormal ones among them, others on every rank and in
/// every round.
fn fill(buffer: &Buffer<u8>, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = (0..buffer.len()).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    });
    buffer.write(0, &bytes.collect::<Vec<u8>>()).unwrap();
}

/// The bytes of the output; sums and products give NaNs of no particular bits, so those are made
/// alike.
fn result(call: &Repeated<'_>) -> Vec<u8> {
    let bytes = call.output.to_vec().unwrap();
    let is_copied = matches!(
        call.collective,
        Collective::Broadcast | Collective::AllGather | Collective::AllToAll
    );
    match call.dtype {
        _ if is_copied => bytes,
        DataType::F32 => (call.output.cast::<f32>().unwrap().to_vec().unwrap().iter())
            .flat_map(|x| if x.is_nan() { f32::NAN } else { *x }.to_le_bytes())
            .collect(),
        DataType::F16 => (call
            .output
            .cast::<half::f16>()
            .unwrap()
            .to_vec()
            .unwrap()
            .iter())
        .flat_map(|x| if x.is_nan() { half::f16::NAN } else { *x }.to_le_bytes())
        .collect(),
        _ => bytes,
    }
}

#[test]
fn calls_that_come_again_give_the_bits_of_the_first() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, |comm| {
            for dtype in [DataType::F32, DataType::F16, DataType::I64, DataType::I8] {
                for count in [1, 2, 5, 6, 7, 13] {
                    for call in calls(&comm, dtype, count) {
                        for round in 0..3 {
                            let seed = u64::from(comm.rank()) << 32 | count << 8 | round;
                            let refill = || {
                                fill(&call.output, seed);
                                fill(&call.input, seed + 100);
                                comm.barrier().unwrap();
                            };
                            refill();
                            call.builder.start().unwrap().wait().unwrap();
                            let expected = result(&call);
                            comm.barrier().unwrap();
                            refill();
                            call.builder.run().unwrap();
                            assert_eq!(
                                result(&call),
                                expected,
                                "round {round} of {:?}",
                                call.builder
                            );
                        }
                    }
                }
            }
        });
    }
}
