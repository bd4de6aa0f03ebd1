//! [`Trace`]: when the gradients of a model are ready in its backward pass, and their sizes.
//!
//! It reads two formats (described in `tests/data/training_bottleneck/README.md`) and tells them
//! apart by the first line: `.bk.log` of the published measurements, and `.layers.csv` with names.
//! Whatever is wrong with a file is said with its line and reason; nothing is guessed.

use std::io::Read;
use std::path::Path;

/// Bytes of a trace file, at most: fifty times what the largest allowed number of tensors needs.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Bytes of one gradient, at most: 1 TiB, far above any GPU.
const TENSOR_BYTES_MAX: u64 = 1 << 40;

/// Longest wait between two gradients: 1000 s.
const WAIT_US_MAX: f64 = 1e9;

/// Gradients of one trace, at most: what a fusion buffer can declare.
const TENSORS_MAX: usize = linerate::unstable::fusion::TENSORS_MAX;

/// The header of `.layers.csv` begins with this.
const CSV_HEADER: &str = "order,name,params";

/// The traces in the binary: name, text, and the measured time of a batch on one GPU in ms.
const BUILT_IN: [(&str, &str, f64); 3] = [
    (
        "resnet50",
        include_str!("../../../tests/data/training_bottleneck/resnet50.bk.log"),
        128.08580219559176,
    ),
    (
        "resnet101",
        include_str!("../../../tests/data/training_bottleneck/resnet101.bk.log"),
        192.00599479476405,
    ),
    (
        "vgg16",
        include_str!("../../../tests/data/training_bottleneck/vgg16.bk.log"),
        194.52352295080985,
    ),
];

/// One gradient of 4-byte elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// Name of the parameter.
    pub name: String,
    /// Microseconds since the previous gradient; the first counts from the start of the backward
    /// pass.
    pub wait_us: f64,
    /// Length in bytes, a multiple of 4.
    pub bytes: u64,
}

/// The gradients of one model, in the order in which they become ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Name of the model, or the file's.
    pub name: String,
    /// The gradients.
    pub gradients: Vec<Gradient>,
    /// Time of a batch on one GPU in ms, where it was measured.
    pub batch_ms: Option<f64>,
}

impl Trace {
    /// The built-in trace of this name, or else the file. The error says what is wrong, and in
    /// which line.
    pub fn load(name: &str) -> Result<Trace, String> {
        if let Some((name, text, batch_ms)) = BUILT_IN.into_iter().find(|(n, ..)| *n == name) {
            return Ok(Trace {
                name: name.into(),
                gradients: parse_text(text)?,
                batch_ms: Some(batch_ms),
            });
        }
        let names = BUILT_IN.map(|(name, ..)| name).join(", ");
        let shown = |cause| format!("trace '{name}': {cause}; built in are {names}");
        let mut bytes = Vec::new();
        // Devices and pipes do not tell their size.
        let file = std::fs::File::open(name).map_err(shown)?;
        let mut start = file.take(FILE_BYTES_MAX + 1);
        start.read_to_end(&mut bytes).map_err(shown)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(format!(
                "trace {name}: more than {FILE_BYTES_MAX} bytes, which is the most that is read"
            ));
        }
        let stem = Path::new(name).file_name().unwrap_or_default();
        Ok(Trace {
            name: stem.to_string_lossy().into_owned(),
            gradients: parse_bytes(&bytes).map_err(|reason| format!("trace {name}: {reason}"))?,
            batch_ms: None,
        })
    }

    /// Microseconds from the start of the backward pass to its last gradient.
    pub fn backward_us(&self) -> f64 {
        self.gradients.iter().map(|g| g.wait_us).sum()
    }

    /// Sum of all lengths in bytes.
    pub fn bytes(&self) -> u64 {
        self.gradients.iter().map(|g| g.bytes).sum()
    }

    /// This trace with all times multiplied.
    pub fn scaled(mut self, factor: f64) -> Trace {
        for gradient in &mut self.gradients {
            gradient.wait_us *= factor;
        }
        self.batch_ms = self.batch_ms.map(|ms| ms * factor);
        self
    }
}

/// Parses either format from bytes that may be anything.
pub fn parse_bytes(bytes: &[u8]) -> Result<Vec<Gradient>, String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse_text(text),
        Err(error) => {
            let good = &bytes[..error.valid_up_to()];
            let line = 1 + good.iter().filter(|b| **b == b'\n').count();
            Err(format!("line {line}: not text (invalid UTF-8)"))
        }
    }
}

fn parse_text(text: &str) -> Result<Vec<Gradient>, String> {
    let first = text.lines().next();
    let first = first.ok_or("line 1: the file is empty; expected a .bk.log or .layers.csv")?;
    let gradients = match first.starts_with(CSV_HEADER) {
        true => parse_layers(text)?,
        false => parse_log(text)?,
    };
    let total = gradients.iter().map(|g| g.bytes).sum::<u64>();
    if total > 1 << 48 {
        return Err(format!("{total} bytes together: at most 2^48"));
    }
    Ok(gradients)
}

/// `.bk.log`: free text, number of batches, number of tensors, then `wait_us,bytes` per tensor.
fn parse_log(text: &str) -> Result<Vec<Gradient>, String> {
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
fn parse_layers(text: &str) -> Result<Vec<Gradient>, String> {
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
        });
    }
    if gradients.is_empty() {
        return Err("line 2: no tensors".into());
    }
    Ok(gradients)
}

fn parse_wait(text: &str, line: usize) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(wait) if (0.0..=WAIT_US_MAX).contains(&wait) => Ok(wait),
        _ => Err(format!(
            "line {line}: wait is '{}'; expected 0 to {WAIT_US_MAX:e} microseconds",
            shown(text)
        )),
    }
}

/// A length given in units of `unit_bytes`; in bytes, a multiple of 4.
fn parse_length(text: &str, unit_bytes: u64, line: usize) -> Result<u64, String> {
    let length = text.trim().parse::<u64>().ok();
    match length.and_then(|length| length.checked_mul(unit_bytes)) {
        Some(bytes) if bytes <= TENSOR_BYTES_MAX && bytes % 4 == 0 => Ok(bytes),
        _ => Err(format!(
            "line {line}: size is '{}'; expected a whole number, in bytes a multiple of 4 and at most {TENSOR_BYTES_MAX}",
            shown(text)
        )),
    }
}

/// A field as an error shows it: short and printable.
fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
                "/../tests/data/training_bottleneck"
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
        let mut prng = linerate::unstable::prng::Prng::new(1);
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
        let error = Trace::load("/does/not/exist").unwrap_err();
        assert!(error.contains("resnet50, resnet101, vgg16"), "{error}");
    }
}
