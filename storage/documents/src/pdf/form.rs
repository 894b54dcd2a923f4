//! What was filled in or is linked to: fields of forms, free text, and addresses.

use std::collections::{HashMap, HashSet};

use pdf_extract::{Dictionary, Document, Object, ObjectId, decode_text_string};

use super::content::rectangle;
use super::glyphs::{BLANK, Piece};

/// Fields of a form, and fields in one another.
const MAX_FIELDS: usize = 20_000;
const MAX_DEPTH: usize = 32;
/// Links and free texts of a page, and bytes of an address.
const MAX_ANNOTATIONS: usize = 500;
const MAX_ADDRESS_BYTES: usize = 500;
/// Flags of fields.
const PASSWORD: i64 = 1 << 13;
const PUSHED: i64 = 1 << 16;
/// Of a value as it is put on the page.
const SIZE: f32 = 10.0;

/// What a field says, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct Filled {
    pub name: String,
    pub value: String,
    /// Its page, from 0, and its corners.
    pub place: Option<(usize, [f32; 4])>,
}

/// What fields inherit.
#[derive(Clone, Default)]
struct Field<'d> {
    name: String,
    kind: Option<&'d [u8]>,
    value: Option<&'d Object>,
    flags: i64,
    options: Option<&'d Object>,
}

/// The values of a form's fields; none of a form that is empty.
pub fn filled(document: &Document, pages: &[ObjectId]) -> Vec<Filled> {
    let form = document.catalog().ok().and_then(|catalog| catalog.get_deref(b"AcroForm", document).ok());
    let fields = form.and_then(|form| form.as_dict().ok()?.get_deref(b"Fields", document).ok()?.as_array().ok());
    let Some(fields) = fields else { return Vec::new() };
    let mut page_of = HashMap::new();
    for (page, id) in pages.iter().enumerate() {
        page_of.extend(annotations(document, *id, MAX_FIELDS).into_iter().filter_map(|(id, _)| Some((id?, page))));
    }
    let mut stack: Vec<(&Object, Field<'_>, usize)> =
        fields.iter().rev().map(|field| (field, Field::default(), 0)).collect();
    let (mut found, mut seen, mut is_any) = (Vec::new(), HashSet::new(), false);
    while let Some((object, above, depth)) = stack.pop() {
        let id = object.as_reference().ok();
        let Some(node) = document.dereference(object).ok().and_then(|(_, node)| node.as_dict().ok()) else { continue };
        if depth > MAX_DEPTH || seen.len() > MAX_FIELDS || id.is_some_and(|id| !seen.insert(id)) {
            continue;
        }
        let field = above.of(document, node);
        let kids = node.get_deref(b"Kids", document).and_then(Object::as_array);
        if let Ok(kids) = kids {
            stack.extend(kids.iter().rev().take(MAX_FIELDS).map(|kid| (kid, field.clone(), depth + 1)));
            continue;
        }
        let Some((value, is_set)) = field.says(document, node) else { continue };
        let corners = node.get(b"Rect").ok().and_then(|rect| rectangle(document, rect)).map(upright);
        let page = id.and_then(|id| page_of.get(&id).copied());
        let place = page.zip(corners.filter(|[left, foot, right, top]| left < right && foot < top));
        is_any |= is_set;
        found.push(Filled { name: field.name, value, place });
    }
    // A form that nobody filled in says nothing with its empty boxes.
    if is_any { found } else { Vec::new() }
}

impl<'d> Field<'d> {
    fn of(&self, document: &'d Document, node: &'d Dictionary) -> Self {
        let mut field = self.clone();
        let text = |key: &[u8]| node.get_deref(key, document).ok().and_then(|text| decode_text_string(text).ok());
        if let Some(part) = text(b"T") {
            field.name = if field.name.is_empty() { part } else { format!("{}.{part}", field.name) };
        }
        if let Some(told) = text(b"TU").filter(|told| !told.trim().is_empty()) {
            field.name = told;
        }
        field.kind = node.get_deref(b"FT", document).and_then(Object::as_name).ok().or(field.kind);
        field.value = node.get_deref(b"V", document).ok().or(field.value);
        field.flags = node.get_deref(b"Ff", document).and_then(Object::as_i64).unwrap_or(field.flags);
        field.options = node.get_deref(b"Opt", document).ok().or(field.options);
        field
    }

    /// What it says at one of its places, and whether somebody filled it in.
    fn says(&self, document: &Document, node: &Dictionary) -> Option<(String, bool)> {
        match self.kind? {
            b"Btn" if self.flags & PUSHED == 0 => {
                let state = node.get_deref(b"AS", document).and_then(Object::as_name).ok();
                let state = state.or_else(|| self.value?.as_name().ok()).unwrap_or(b"Off");
                let is_on = state != b"Off";
                Some((if is_on { "[x]" } else { "[ ]" }.to_owned(), is_on))
            }
            b"Tx" if self.flags & PASSWORD == 0 => self.text(document, self.value?),
            b"Ch" => match self.value? {
                Object::Array(values) => {
                    let texts: Vec<String> = values
                        .iter()
                        .take(MAX_FIELDS)
                        .filter_map(|value| Some(self.text(document, value)?.0))
                        .collect();
                    Some((texts.join(", "), true)).filter(|(text, _)| !text.is_empty())
                }
                value => self.text(document, value),
            },
            _ => None,
        }
    }

    fn text(&self, document: &Document, value: &Object) -> Option<(String, bool)> {
        let text = match value {
            Object::Stream(stream) => String::from_utf8_lossy(&stream.decompressed_content().ok()?).into_owned(),
            value => decode_text_string(value).ok()?,
        };
        // A choice is kept by what it is called within the form; what people see stands beside it.
        let shown = self.options.and_then(|options| options.as_array().ok()).and_then(|options| {
            options.iter().take(MAX_FIELDS).find_map(|option| {
                let [kept, shown] = option.as_array().ok()?.as_slice() else { return None };
                let string = |object| decode_text_string(document.dereference(object).ok()?.1).ok();
                (string(kept)? == text).then(|| string(shown))?
            })
        });
        let text = shown.unwrap_or(text).replace("\r\n", "\n").replace('\r', "\n");
        (!text.trim().is_empty()).then(|| (text.trim().to_owned(), true))
    }
}

/// Left, foot, right, top, whichever corners are given.
fn upright([a, b, c, d]: [f32; 4]) -> [f32; 4] {
    [a.min(c), b.min(d), a.max(c), b.max(d)]
}

/// The same as a text that runs at an angle sees it.
fn turned(corners: [f32; 4], angle: i16) -> [f32; 4] {
    let (sine, cosine) = f32::from(angle).to_radians().sin_cos();
    let turn = |x: f32, y: f32| (x * cosine + y * sine, y * cosine - x * sine);
    let [left, foot, right, top] = corners;
    let ((a, b), (c, d)) = (turn(left, foot), turn(right, top));
    upright([a, b, c, d])
}

fn annotations(document: &Document, page: ObjectId, most: usize) -> Vec<(Option<ObjectId>, &Dictionary)> {
    let list = document.get_dictionary(page).and_then(|page| page.get_deref(b"Annots", document));
    let Ok(list) = list.and_then(Object::as_array) else { return Vec::new() };
    let one = |object| {
        let dictionary = document.dereference(object).ok()?.1.as_dict().ok()?;
        Some((object.as_reference().ok(), dictionary))
    };
    list.iter().take(most).filter_map(one).collect()
}

/// Values as if they had been printed into their fields.
pub fn print(filled: &[Filled], page: usize, angle: i16, pieces: &mut Vec<Piece>) {
    for Filled { value, place, .. } in filled {
        let Some((_, corners)) = place.filter(|place| place.0 == page) else { continue };
        printed(value, turned(corners, angle), angle, pieces);
    }
}

fn printed(value: &str, [left, foot, right, top]: [f32; 4], angle: i16, pieces: &mut Vec<Piece>) {
    let lines: Vec<&str> = value.lines().filter(|line| !line.trim().is_empty()).collect();
    let size = (0.7 * (top - foot) / lines.len().max(1) as f32).clamp(4.0, SIZE);
    let middle = f32::midpoint(foot, top) - 0.35 * size;
    let first = middle + 1.2 * size * (lines.len().saturating_sub(1)) as f32 / 2.0;
    for (at, line) in lines.into_iter().enumerate() {
        let width = 0.5 * size * line.chars().count() as f32;
        pieces.push(Piece {
            text: line.trim().to_owned(),
            left: left + 2.0,
            right: (left + 2.0 + width).min(right.max(left + 3.0)),
            base: first - 1.2 * size * at as f32,
            size,
            angle,
            order: pieces.len() as u32,
            is_spaced: true,
            ..Piece::default()
        });
    }
}

/// Puts addresses behind the texts that are linked to them, and free texts where they were typed.
pub fn annotate(document: &Document, page: ObjectId, angle: i16, pieces: &mut Vec<Piece>) {
    // A link over two lines is two annotations, one after the other.
    let mut links: Vec<(String, Vec<usize>)> = Vec::new();
    let written = pieces.len();
    for (_, annotation) in annotations(document, page, MAX_ANNOTATIONS) {
        let name = |key: &[u8]| annotation.get_deref(key, document).and_then(Object::as_name).ok();
        let Some(corners) = annotation.get(b"Rect").ok().and_then(|rect| rectangle(document, rect)).map(upright) else {
            continue;
        };
        match name(b"Subtype") {
            Some(b"FreeText") => {
                let text = annotation.get_deref(b"Contents", document).ok();
                if let Some(text) = text.and_then(|text| decode_text_string(text).ok()) {
                    printed(&text.replace('\r', "\n"), turned(corners, angle), angle, pieces);
                }
            }
            Some(b"Link") => {
                let Some(address) = address(document, annotation) else { continue };
                let within = |piece: &Piece| {
                    let [left, foot, right, top] = turned(corners, piece.angle);
                    let middle = piece.base + 0.3 * piece.size;
                    (left..right).contains(&piece.middle()) && (foot..top).contains(&middle)
                };
                let under =
                    pieces.iter().take(written).enumerate().filter(|(_, piece)| within(piece)).map(|(at, _)| at);
                let under: Vec<usize> = under.collect();
                match links.last_mut() {
                    Some((last, pieces)) if *last == address => pieces.extend(under),
                    _ => links.push((address, under)),
                }
            }
            _ => {}
        }
    }
    for (address, mut under) in links {
        under.sort_unstable();
        under.dedup();
        let shown: String = under.iter().filter_map(|at| pieces.get(*at)).map(|piece| piece.text.as_str()).collect();
        let Some(mut last) = under.last().copied().filter(|_| !says(&shown, &address)) else { continue };
        // Not within a word.
        while let (Some(piece), Some(next)) = (pieces.get(last), pieces.get(last + 1)) {
            let is_on =
                next.text.starts_with(char::is_alphanumeric) && (next.base - piece.base).abs() < 0.1 * piece.size;
            if next.is_spaced || !is_on || (next.left - piece.right).abs() > BLANK * piece.size {
                break;
            }
            last += 1;
        }
        if let Some(last) = pieces.get_mut(last) {
            last.text = format!("{} ({address})", last.text);
        }
    }
}

fn address(document: &Document, annotation: &Dictionary) -> Option<String> {
    let action = annotation.get_deref(b"A", document).ok()?.as_dict().ok()?;
    let address = action.get_deref(b"URI", document).ok()?.as_str().ok()?;
    let address = String::from_utf8_lossy(address).trim().to_owned();
    let address = address.strip_prefix("mailto:").unwrap_or(&address);
    let is_one = !address.is_empty() && address.len() <= MAX_ADDRESS_BYTES && !address.contains(char::is_whitespace);
    is_one.then(|| address.to_owned())
}

/// Whether a text is its own address, in full or in short.
fn says(shown: &str, address: &str) -> bool {
    let bare = |text: &str| {
        let text = text.to_lowercase();
        let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(&text);
        text.strip_prefix("www.").unwrap_or(text).trim_end_matches(['/', '.', ',']).to_owned()
    };
    let (shown, address) = (bare(shown), bare(address));
    shown.contains(&address) || (shown.len() > 5 && shown.contains('.') && address.contains(&shown))
}
