//! Reads `.bk.log` of the published measurements, and `.layers.csv` with names
//! (`tests/data/training_bottleneck/README.md` describes both). They are told apart by the first
//! line. Whatever is wrong is said with its line and the reason; nothing is guessed.

use super::trace::{Gradient, TENSOR_BYTES_MAX, WAIT_US_MAX, shown};
use crate::fusion::TENSORS_MAX;
use crate::types::DataType;

/// The header of `.layers.csv` begins with this.
const CSV_HEADER: &str = "order,name,params";

/// What was read, or what is wrong with which line.
type Parsed<T> = std::result::Result<T, String>;

/// Parses either format from bytes that may be anything.
pub fn parse_bytes(bytes: &[u8]) -> Parsed<Vec<Gradient>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse_text(text),
        Err(error) => {
            let good = &bytes[..error.valid_up_to()];
            let line = 1 + good.iter().filter(|b| **b == b'\n').count();
            Err(format!("line {line}: not text (invalid UTF-8)"))
        }
    }
}

pub fn parse_text(text: &str) -> Parsed<Vec<Gradient>> {
    let first = text.lines().next();
    let first = first.ok_or("line 1: the file is empty; expected a .bk.log or .layers.csv")?;
    match first.starts_with(CSV_HEADER) {
        true => parse_layers(text),
        false => parse_log(text),
    }
}

/// `.bk.log`: free text, number of batches, number of tensors, then `wait_us,bytes` per tensor.
fn parse_log(text: &str) -> Parsed<Vec<Gradient>> {
    let mut lines = text.lines().map(str::trim).enumerate().skip(1);
    let mut header = |what: &str, line: usize| match lines.next() {
        Some((_, text)) => text
            .parse::<usize>()
            .map_err(|_| format!("line {line}: '{}' is no {what}", shown(text))),
        None => Err(format!("line {line}: the file ends before the {what}")),
    };
    let batches = header("number of batches", 2)?;
    if batches != 1 {
        return Err(format!(
            "line 2: {batches} batches; only averages are read, which have 1"
        ));
    }
    let count = header("number of tensors", 3)?;
    if count == 0 || count > TENSORS_MAX {
        return Err(format!(
            "line 3: {count} tensors; 1 to {TENSORS_MAX} are allowed"
        ));
    }
    let mut gradients = Vec::with_capacity(count);
    for (index, line) in lines {
        let number = index + 1;
        if line.is_empty() {
            continue;
        }
        if gradients.len() == count {
            return Err(format!(
                "line {number}: more tensors than the {count} of line 3"
            ));
        }
        let fields: Vec<_> = line.split(',').collect();
        let [wait, bytes] = fields[..] else {
            return Err(format!(
                "line {number}: {} columns; expected 2: wait_us,bytes",
                fields.len()
            ));
        };
        gradients.push(Gradient {
            name: format!("gradient{}", gradients.len()),
            wait_us: parse_wait(wait, number)?,
            bytes: parse_length(bytes, 1, number)?,
            dtype: DataType::F32,
        });
    }
    if gradients.len() < count {
        return Err(format!(
            "line {}: the file ends after {} tensors; line 3 says {count}",
            text.lines().count(),
            gradients.len()
        ));
    }
    Ok(gradients)
}

/// `.layers.csv`: `order,name,params,wait_us[,...]` with 4-byte parameters.
fn parse_layers(text: &str) -> Parsed<Vec<Gradient>> {
    let header: Vec<_> = text
        .lines()
        .next()
        .unwrap_or("")
        .trim()
        .split(',')
        .collect();
    if header.get(3) != Some(&"wait_us") {
        return Err(
            "line 1: column 4 is not wait_us; a trace without times cannot be replayed".into(),
        );
    }
    let mut gradients = Vec::new();
    for (index, line) in text.lines().enumerate().skip(1) {
        let (number, line) = (index + 1, line.trim());
        if line.is_empty() {
            continue;
        }
        if gradients.len() == TENSORS_MAX {
            return Err(format!("line {number}: more than {TENSORS_MAX} tensors"));
        }
        let fields: Vec<_> = line.split(',').collect();
        if fields.len() != header.len() {
            return Err(format!(
                "line {number}: {} columns; the header has {}",
                fields.len(),
                header.len()
            ));
        }
        if fields[0].parse() != Ok(gradients.len()) {
            return Err(format!(
                "line {number}: order is '{}'; expected {}",
                shown(fields[0]),
                gradients.len()
            ));
        }
        gradients.push(Gradient {
            name: fields[1].into(),
            wait_us: parse_wait(fields[3], number)?,
            bytes: parse_length(fields[2], 4, number)?,
            dtype: DataType::F32,
        });
    }
    if gradients.is_empty() {
        return Err("line 2: no tensors".into());
    }
    Ok(gradients)
}

fn parse_wait(text: &str, line: usize) -> Parsed<f64> {
    match text.trim().parse::<f64>() {
        Ok(wait) if (0.0..=WAIT_US_MAX).contains(&wait) => Ok(wait),
        _ => Err(format!(
            "line {line}: wait is '{}'; expected 0 to {WAIT_US_MAX:e} microseconds",
            shown(text)
        )),
    }
}

/// A length given in units of `unit_bytes`; in bytes, a multiple of 4.
fn parse_length(text: &str, unit_bytes: u64, line: usize) -> Parsed<u64> {
    let length = text.trim().parse::<u64>().ok();
    match length.and_then(|length| length.checked_mul(unit_bytes)) {
        Some(bytes) if bytes <= TENSOR_BYTES_MAX && bytes % 4 == 0 => Ok(bytes),
        _ => Err(format!(
            "line {line}: size is '{}'; expected a whole number, in bytes a multiple of 4 and at most {TENSOR_BYTES_MAX}",
            shown(text)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whatif::Trace;

    fn error(text: &str) -> String {
        parse_bytes(text.as_bytes()).unwrap_err()
    }

    fn log(lines: &str) -> String {
        format!("free text\n1\n2\n{lines}")
    }

    #[test]
    fn the_built_in_traces_have_the_published_sizes_and_times() {
        let expected = [
            ("resnet50", 161, 4 * 25_557_032, 64806.567),
            ("resnet101", 314, 4 * 44_549_160, 106406.763),
            ("vgg16", 58, 553_463_968, 111620.484),
        ];
        for (name, count, bytes, backward_us) in expected {
            let trace = Trace::load(name).unwrap();
            assert_eq!(
                (trace.gradients.len(), trace.bytes()),
                (count, bytes),
                "{name}"
            );
            assert!((trace.backward_us() - backward_us).abs() < 0.001, "{name}");
        }
    }

    #[test]
    fn both_formats_of_a_model_give_the_same_gradients() {
        for (name, file) in [
            ("resnet50", "resnet50"),
            ("resnet101", "resnet101"),
            ("vgg16", "vgg16_bn_imagenet"),
        ] {
            let folder = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/data/training_bottleneck"
            );
            let named = Trace::load(&format!("{folder}/{file}.layers.csv")).unwrap();
            let raw = Trace::load(name).unwrap();
            assert_eq!(named.gradients.len(), raw.gradients.len());
            for (a, b) in named.gradients.iter().zip(&raw.gradients) {
                assert_eq!(a.bytes, b.bytes, "{}", a.name);
                assert!((a.wait_us - b.wait_us).abs() < 1e-5, "{}", a.name);
            }
        }
    }

    #[test]
    fn a_good_log_with_an_empty_tensor_is_read() {
        let gradients = parse_bytes(log("0.5,8\r\n0,0\n\n").as_bytes()).unwrap();
        let sizes: Vec<_> = gradients.iter().map(|g| (g.wait_us, g.bytes)).collect();
        assert_eq!(sizes, [(0.5, 8), (0.0, 0)]);
    }

    #[test]
    fn each_fault_of_a_log_is_told_with_its_line() {
        let cases = [
            (log("1,4,9\n1,4"), "line 4: 3 columns"),
            (log("1,4\n14"), "line 5: 1 columns"),
            (log("-1,4\n1,4"), "line 4: wait is '-1'"),
            (log("1,4\nNaN,4"), "line 5: wait is 'NaN'"),
            (log("inf,4\n1,4"), "line 4: wait is 'inf'"),
            (log("1e300,4\n1,4"), "line 4: wait"),
            (log("1,-4\n1,4"), "line 4: size is '-4'"),
            (log("1,99999999999999999999\n1,4"), "line 4: size"),
            (log("1,2199023255552\n1,4"), "line 4: size"),
            (log("1,6\n1,4"), "multiple of 4"),
            (log("1,4"), "line 4: the file ends after 1 tensors"),
            (log("1,4\n1,4\n1,4"), "line 6: more tensors than the 2"),
            ("text\n1\n0\n".into(), "line 3: 0 tensors"),
            ("text\n1\n99999999\n".into(), "line 3: 99999999 tensors"),
            ("text\n1\n-3\n".into(), "line 3: '-3' is no number"),
            ("text\n5\n3\n".into(), "line 2: 5 batches"),
            ("text\nx\n".into(), "line 2: 'x' is no number"),
            ("text\n".into(), "line 2: the file ends"),
            ("".into(), "line 1: the file is empty"),
        ];
        for (text, expected) in cases {
            let error = error(&text);
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn each_fault_of_a_table_is_told_with_its_line() {
        let table = |lines: &str| format!("order,name,params,wait_us,ready_us\n{lines}");
        let cases = [
            ("order,name,params\n0,a,4\n".into(), "line 1: column 4"),
            (table(""), "line 2: no tensors"),
            (table("0,a,4,1\n"), "line 2: 4 columns"),
            (
                table("0,a,4,1,1\n2,b,4,1,1\n"),
                "line 3: order is '2'; expected 1",
            ),
            (table("0,a,4611686018427387905,1,1\n"), "line 2: size"),
            (table("0,a,4,nan,1\n"), "line 2: wait"),
        ];
        for (text, expected) in cases {
            let error = error(&text);
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn binary_junk_is_an_error_and_never_a_panic() {
        assert!(
            parse_bytes(b"a\n\xff\xfe")
                .unwrap_err()
                .contains("line 2: not text")
        );
        assert!(parse_bytes(&[0; 4096]).is_err());
        let mut prng = crate::prng::Prng::new(1);
        for _ in 0..2000 {
            let mut bytes = log("0.5,8\n0,16\n").into_bytes();
            for _ in 0..=prng.below(4) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.next_u64() as u8;
            }
            let _ = parse_bytes(&bytes);
            bytes.truncate(prng.below(bytes.len() as u64) as usize);
            let _ = parse_bytes(&bytes);
        }
    }

    #[test]
    fn a_missing_file_lists_what_is_built_in() {
        let error = Trace::load("/does/not/exist").unwrap_err().to_string();
        assert!(error.contains("resnet50, resnet101, vgg16"), "{error}");
    }
}
