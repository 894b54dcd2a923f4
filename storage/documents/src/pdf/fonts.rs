//! Fonts, put so that the PDF library reads them: it gives up on many that other readers know.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pdf_extract::{Dictionary, Document, MediaBox, Object, OutputDev, OutputError, Stream, Transform, output_doc_page};

use super::letters;

/// Letters of a font, twice over.
const MAX_LETTERS: usize = 1 << 17;
/// Of a font whose codes are bytes.
const CODES: usize = 256;
/// What is looked at of the differences of an encoding: each code and its name, twice over.
const MAX_DIFFERENCES: usize = 4 * CODES;
/// Widths and names that are written out for all fonts of a file: many may have the same list.
const MAX_WRITTEN: usize = 1 << 21;
/// Widths of fonts with many letters that are looked at.
const MAX_SEEN: usize = 1 << 24;
const KINDS: [&[u8]; 5] = [b"Type0", b"Type1", b"MMType1", b"TrueType", b"Type3"];
/// Encodings that the library knows.
const ENCODINGS: [&[u8]; 3] = [b"MacRomanEncoding", b"MacExpertEncoding", b"WinAnsiEncoding"];
/// Where the standard encoding is another than the library's own.
const STANDARD: [(i64, &str); 56] = [
    (0x27, "quoteright"),
    (0x60, "quoteleft"),
    (0xa1, "exclamdown"),
    (0xa2, "cent"),
    (0xa3, "sterling"),
    (0xa4, "fraction"),
    (0xa5, "yen"),
    (0xa6, "florin"),
    (0xa7, "section"),
    (0xa8, "currency"),
    (0xa9, "quotesingle"),
    (0xaa, "quotedblleft"),
    (0xab, "guillemotleft"),
    (0xac, "guilsinglleft"),
    (0xad, "guilsinglright"),
    (0xae, "fi"),
    (0xaf, "fl"),
    (0xb1, "endash"),
    (0xb2, "dagger"),
    (0xb3, "daggerdbl"),
    (0xb4, "periodcentered"),
    (0xb6, "paragraph"),
    (0xb7, "bullet"),
    (0xb8, "quotesinglbase"),
    (0xb9, "quotedblbase"),
    (0xba, "quotedblright"),
    (0xbb, "guillemotright"),
    (0xbc, "ellipsis"),
    (0xbd, "perthousand"),
    (0xbf, "questiondown"),
    (0xc1, "grave"),
    (0xc2, "acute"),
    (0xc3, "circumflex"),
    (0xc4, "tilde"),
    (0xc5, "macron"),
    (0xc6, "breve"),
    (0xc7, "dotaccent"),
    (0xc8, "dieresis"),
    (0xca, "ring"),
    (0xcb, "cedilla"),
    (0xcd, "hungarumlaut"),
    (0xce, "ogonek"),
    (0xcf, "caron"),
    (0xd0, "emdash"),
    (0xe1, "AE"),
    (0xe3, "ordfeminine"),
    (0xe8, "Lslash"),
    (0xe9, "Oslash"),
    (0xea, "OE"),
    (0xeb, "ordmasculine"),
    (0xf1, "ae"),
    (0xf5, "dotlessi"),
    (0xf8, "lslash"),
    (0xf9, "oslash"),
    (0xfa, "oe"),
    (0xfb, "germandbls"),
];
/// Fonts whose widths the library has.
const CORE: [&[u8]; 14] = [
    b"Courier",
    b"Courier-Bold",
    b"Courier-BoldOblique",
    b"Courier-Oblique",
    b"Helvetica",
    b"Helvetica-Bold",
    b"Helvetica-BoldOblique",
    b"Helvetica-Oblique",
    b"Symbol",
    b"Times-Bold",
    b"Times-BoldItalic",
    b"Times-Italic",
    b"Times-Roman",
    b"ZapfDingbats",
];
/// Helvetica's widths, from the blank on.
const WIDTHS: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833,
    722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556,
    556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334,
    260, 334, 584,
];

/// Numbers of an array.
pub fn numbers(document: &Document, object: &Object) -> Option<Vec<f32>> {
    let (_, object) = document.dereference(object).ok()?;
    object.as_array().ok()?.iter().map(|one| number(document, one)).collect()
}

fn number(document: &Document, object: &Object) -> Option<f32> {
    document.dereference(object).ok()?.1.as_float().ok()
}

fn name_of<'d>(document: &'d Document, font: &'d Dictionary, key: &[u8]) -> &'d [u8] {
    font.get_deref(key, document).and_then(Object::as_name).unwrap_or_default()
}

/// Mends all fonts of a file but those that stand in their pages.
pub fn mend(document: &mut Document) {
    let (mut fonts, mut left) = (Vec::new(), MAX_WRITTEN);
    for (id, object) in &document.objects {
        let Ok(font) = object.as_dict() else { continue };
        let Some(mended) = mended(document, font) else { continue };
        let Some(rest) = left.checked_sub(written(&mended).saturating_sub(written(font))) else { break };
        left = rest;
        fonts.push((*id, mended));
    }
    for (id, font) in fonts {
        document.objects.insert(id, Object::Dictionary(font));
    }
    list_widths(document);
}

/// Widths and names that a font has itself.
fn written(font: &Dictionary) -> usize {
    let length = |font: &Dictionary, key: &[u8]| font.get(key).and_then(Object::as_array).map_or(0, Vec::len);
    let encoding = font.get(b"Encoding").and_then(Object::as_dict);
    length(font, b"Widths") + encoding.map_or(0, |encoding| length(encoding, b"Differences"))
}

/// A font as the library reads it; `None` where a dictionary is no font.
pub fn mended(document: &Document, font: &Dictionary) -> Option<Dictionary> {
    let kind = name_of(document, font, b"Subtype");
    if !KINDS.contains(&kind) {
        return None;
    }
    let mut mended = font.clone();
    // The library wants a name of each that is not drawn.
    if kind != b"Type3" && name_of(document, font, b"BaseFont").is_empty() {
        mended.set("BaseFont", Object::Name(b"Helvetica".to_vec()));
    }
    match font.get_deref(b"ToUnicode", document) {
        Ok(Object::Stream(_)) => {}
        Ok(Object::Name(name)) if name == b"Identity-H" => {}
        _ => {
            mended.remove(b"ToUnicode");
        }
    }
    if kind != b"Type0" {
        set_widths(document, &mut mended, kind == b"Type3");
        set_encoding(document, &mut mended, kind);
    }
    Some(mended)
}

/// The library wants as many widths as there are codes, and takes those of fonts that are drawn to be thousandths, whatever their matrix says.
fn set_widths(document: &Document, font: &mut Dictionary, is_drawn: bool) {
    let first = font.get_deref(b"FirstChar", document).and_then(Object::as_float).map_or(0, |first| first as i64);
    let widths = font.get_deref(b"Widths", document).and_then(Object::as_array).ok();
    let widths = widths.filter(|widths| !widths.is_empty() && (0..CODES as i64).contains(&first));
    let last = font.get_deref(b"LastChar", document).and_then(Object::as_i64).ok();
    if !is_drawn && widths.is_some_and(|widths| last == Some(first + widths.len() as i64 - 1) && are_plain(widths)) {
        font.set("FirstChar", first);
        return;
    }
    let widths: Option<Vec<f32>> =
        widths.map(|widths| widths.iter().take(CODES - first as usize).map(|one| width(document, one)).collect());
    let (first, widths) = match widths {
        Some(widths) if is_drawn => {
            let unit = drawn_unit(document, font).map_or(1.0, |unit| unit * 1000.0);
            let mut all = vec![0.0; CODES];
            all.iter_mut().skip(first as usize).zip(widths).for_each(|(one, width)| *one = width * unit);
            (0, all)
        }
        Some(widths) => (first, widths),
        None if is_drawn => (0, vec![500.0; CODES]),
        None if CORE.contains(&name_of(document, font, b"BaseFont")) => {
            for key in ["FirstChar", "LastChar", "Widths"] {
                font.remove(key.as_bytes());
            }
            return;
        }
        None => (0, usual_widths(name_of(document, font, b"BaseFont"))),
    };
    font.set("FirstChar", first);
    font.set("LastChar", first + widths.len() as i64 - 1);
    font.set("Widths", widths.into_iter().map(Object::Real).collect::<Vec<_>>());
}

/// Zero where it cannot be read.
fn width(document: &Document, object: &Object) -> f32 {
    number(document, object).unwrap_or(0.0)
}

/// Whether the library takes a list of widths as it is.
fn are_plain(widths: &[Object]) -> bool {
    widths.len() <= CODES && widths.iter().all(|width| width.as_float().is_ok())
}

/// Of a font that does not say them, as of one that all readers have.
fn usual_widths(name: &[u8]) -> Vec<f32> {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    let width =
        |code: usize| code.checked_sub(32).and_then(|at| WIDTHS.get(at)).map_or(556.0, |width| f32::from(*width));
    if name.contains("courier") || name.contains("mono") {
        vec![600.0; CODES]
    } else if name.contains("times") {
        (0..CODES).map(|code| 0.9 * width(code)).collect()
    } else {
        (0..CODES).map(width).collect()
    }
}

/// The library knows three encodings by name, and wants one where the font has another map, too.
fn set_encoding(document: &Document, font: &mut Dictionary, kind: &[u8]) {
    let has = |key: &[u8]| font.get_deref(key, document).is_ok();
    let descriptor = font.get_deref(b"FontDescriptor", document).and_then(Object::as_dict).ok();
    let has_file = |key: &[u8]| descriptor.is_some_and(|descriptor| descriptor.get_deref(key, document).is_ok());
    let has_map = has(b"Widths") && (has(b"ToUnicode") || has_file(b"FontFile3")) && !has_file(b"FontFile");
    let needs = kind == b"Type3" || kind != b"TrueType" && has_map;
    let encoding = match font.get_deref(b"Encoding", document) {
        Ok(Object::Name(name)) if ENCODINGS.contains(&name.as_slice()) => return,
        Ok(Object::Name(name)) if name == b"StandardEncoding" => Some(encoding(document, None, true)),
        Ok(Object::Dictionary(own)) => {
            let base = name_of(document, own, b"BaseEncoding");
            let mut made = encoding(document, Some(own), base == b"StandardEncoding");
            if ENCODINGS.contains(&base) {
                made.set("BaseEncoding", Object::Name(base.to_vec()));
            }
            Some(made)
        }
        _ => needs.then(Dictionary::new),
    };
    match encoding {
        Some(encoding) => font.set("Encoding", Object::Dictionary(encoding)),
        None => {
            font.remove(b"Encoding");
        }
    }
}

/// An encoding with each code by itself: what the library does not expect in it ends the page.
fn encoding(document: &Document, own: Option<&Dictionary>, is_standard: bool) -> Dictionary {
    let standard = STANDARD.iter().filter(|_| is_standard).map(|(code, name)| (*code, name.as_bytes()));
    let mut names: BTreeMap<i64, &[u8]> = standard.collect();
    let listed = own.and_then(|own| own.get_deref(b"Differences", document).and_then(Object::as_array).ok());
    let mut code = 0;
    for object in listed.into_iter().flatten().take(MAX_DIFFERENCES) {
        match document.dereference(object) {
            Ok((_, Object::Name(name))) => {
                if (0..CODES as i64).contains(&code) {
                    names.insert(code, name);
                }
                code += 1;
            }
            Ok((_, object)) => code = object.as_float().map_or(code, |number| number as i64 % 65_536),
            Err(_) => {}
        }
    }
    let named = |(code, name): (i64, &[u8])| [Object::Integer(code), Object::Name(name.to_vec())];
    let mut encoding = Dictionary::new();
    encoding.set("Differences", names.into_iter().flat_map(named).collect::<Vec<_>>());
    encoding
}

/// What a font on which the library gives up may be put as, the most of it first.
pub fn simpler(document: &Document, font: &Dictionary) -> Vec<Dictionary> {
    let mut all = Vec::new();
    let kind = name_of(document, font, b"Subtype");
    if let Ok(map) = font.get_deref(b"ToUnicode", document).and_then(Object::as_stream) {
        let content = map.decompressed_content().unwrap_or_else(|_| map.content.clone());
        if let Some(plain) = letters::plain(&content) {
            let mut mapped = font.clone();
            mapped.set("ToUnicode", Object::Stream(Stream::new(Dictionary::new(), plain)));
            all.push(mapped);
        }
    }
    if kind == b"Type0" {
        return all;
    }
    let mut without = font.clone();
    without.remove(b"ToUnicode");
    all.push(without);
    if kind != b"Type3" {
        // Its map and its encoding say the letters, too, where its file is damaged.
        let both = |font: Dictionary| {
            let other = font.has(b"FontDescriptor").then(|| without_file(&font, kind));
            [Some(font), other]
        };
        all = all.into_iter().flat_map(both).flatten().collect();
        let mut bare = Dictionary::new();
        for key in ["BaseFont", "Encoding", "FirstChar", "LastChar", "Widths"] {
            if let Ok(value) = font.get(key.as_bytes()) {
                bare.set(key, value.clone());
            }
        }
        bare.set("Subtype", Object::Name(b"TrueType".to_vec()));
        let mut bare = mended(document, &bare).unwrap_or(bare);
        if !bare.has(b"Encoding") {
            bare.set("Encoding", Object::Name(b"WinAnsiEncoding".to_vec()));
        }
        all.push(bare);
    }
    all
}

/// A font without its file, and all that is said of that.
fn without_file(font: &Dictionary, kind: &[u8]) -> Dictionary {
    let mut font = font.clone();
    font.remove(b"FontDescriptor");
    // The library wants one beside a map.
    if kind != b"TrueType" && !font.has(b"Encoding") {
        font.set("Encoding", Object::Dictionary(Dictionary::new()));
    }
    font
}

/// Nobody that listens to the library.
struct Nobody;

impl OutputDev for Nobody {
    fn begin_page(&mut self, _: u32, _: &MediaBox, _: Option<(f64, f64, f64, f64)>) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn output_character(&mut self, _: &Transform, _: f64, _: f64, _: f64, _: &str) -> Result<(), OutputError> {
        Ok(())
    }

    fn begin_word(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_word(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), OutputError> {
        Ok(())
    }
}

/// Whether the library gets through the first page.
pub fn is_read(document: &Document) -> bool {
    catch_unwind(AssertUnwindSafe(|| output_doc_page(document, &mut Nobody, 1))).is_ok_and(|read| read.is_ok())
}

/// By its name, as nothing else tells it reliably.
pub fn is_bold(document: &Document, font: &Dictionary) -> bool {
    let Ok(name) = font.get_deref(b"BaseFont", document).and_then(Object::as_name) else { return false };
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    ["bold", "black", "heavy", "demi", "cmbx", "sfbx", "nimbussanl-bold"].iter().any(|part| name.contains(part))
}

/// The first of a drawn font's matrix: its widths times it are ems.
fn drawn_unit(document: &Document, font: &Dictionary) -> Option<f32> {
    let is_drawn = font.get_deref(b"Subtype", document).and_then(Object::as_name).is_ok_and(|kind| kind == b"Type3");
    let matrix = font.get_deref(b"FontMatrix", document).and_then(Object::as_array).ok().filter(|_| is_drawn)?;
    number(document, matrix.first()?).filter(|unit| unit.is_normal())
}

/// The em of a font that is drawn, as its letters are wide: some are one unit large, and the page is scaled.
pub fn drawn_scale(document: &Document, font: &Dictionary) -> Option<f32> {
    drawn_unit(document, font)?;
    let widths = numbers(document, font.get(b"Widths").ok()?)?;
    let widths: Vec<f32> = widths.into_iter().filter(|width| *width > 0.0).collect();
    // Their widths are in thousandths by now.
    let em = 2.0 * widths.iter().sum::<f32>() / widths.len().max(1) as f32 / 1000.0;
    Some(em).filter(|em| em.is_normal() && !(0.4..2.5).contains(em))
}

/// The library misreads a width that is given for several letters at once, so that each gets its own.
pub fn list_widths(document: &mut Document) {
    let (mut listed, mut left, mut unseen) = (Vec::new(), MAX_WRITTEN, MAX_SEEN);
    for (id, object) in &document.objects {
        let widths = object.as_dict().and_then(|font| font.get_deref(b"W", document)).and_then(Object::as_array);
        let Ok(widths) = widths else { continue };
        let lists = widths.iter().filter_map(|one| one.as_array().ok());
        let Some(rest) = unseen.checked_sub(widths.len() + lists.map(Vec::len).sum::<usize>()) else { break };
        unseen = rest;
        if let Some((list, letters)) = each_width(document, widths) {
            let Some(rest) = left.checked_sub(letters) else { break };
            left = rest;
            listed.push((*id, list));
        }
    }
    for (id, list) in listed {
        if let Ok(font) = document.get_object_mut(id).and_then(Object::as_dict_mut) {
            font.set("W", list);
        }
    }
}

/// `[1 [500 600] 7 9 500]` as `[1 [500 600] 7 [500 500 500]]`, as far as it can be read, and how many widths were; `None` where it is so already.
fn each_width(document: &Document, widths: &[Object]) -> Option<(Vec<Object>, usize)> {
    let is_number = |object: &Object| object.as_float().is_ok();
    let is_plain =
        |pair: &[Object]| matches!(pair, [Object::Integer(_), Object::Array(own)] if own.iter().all(is_number));
    if widths.chunks(2).all(is_plain) {
        return None;
    }
    let (mut list, mut letters, mut rest) = (Vec::new(), 0, widths.iter());
    while let Some((first, widths)) = next_widths(document, &mut rest) {
        letters += widths.len();
        if letters > MAX_LETTERS {
            break;
        }
        list.push(Object::Integer(first));
        list.push(Object::Array(widths.into_iter().map(Object::Real).collect()));
    }
    Some((list, letters))
}

/// The next letters' first one, and their widths; `None` where there are none that can be read.
fn next_widths(document: &Document, rest: &mut std::slice::Iter<'_, Object>) -> Option<(i64, Vec<f32>)> {
    let first = number(document, rest.next()?)? as i64;
    let next = document.dereference(rest.next()?).ok()?.1;
    if let Ok(widths) = next.as_array() {
        return Some((first, widths.iter().take(MAX_LETTERS + 1).map(|one| width(document, one)).collect()));
    }
    let last = next.as_float().ok()? as i64;
    let count = usize::try_from(last.checked_sub(first)?.checked_add(1)?).ok()?;
    Some((first, vec![width(document, rest.next()?); count.min(MAX_LETTERS + 1)]))
}
