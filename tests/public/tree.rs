//! The modules of a crate, as their files have them, and where a path of a module leads.

use std::collections::BTreeMap;
use std::path::Path;
use syn::{Attribute, Item, UseTree, Visibility};

/// One module: its items but modules, those by name, and all that its `use` items bring.
pub struct Module {
    pub items: Vec<Item>,
    pub children: BTreeMap<String, Module>,
    pub imports: Vec<Import>,
    pub is_public: bool,
    pub is_hidden: bool,
}

/// Modules from the root down to one.
pub type Place = Vec<String>;

/// A name that a `use` brings: as what, and from where.
pub struct Import {
    pub name: String,
    pub path: Vec<String>,
    pub is_public: bool,
}

/// What a path leads to.
pub enum Target {
    Module(Place),
    /// An item of this name in this module.
    Item(Place, String),
    /// Of another crate.
    Foreign,
}

/// A crate, from its first file.
pub fn read(file: &Path) -> Module {
    let folder = file.parent().expect("a file is in a folder");
    Module::new(parse(file), folder, true, false)
}

fn parse(file: &Path) -> Vec<Item> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let parsed = syn::parse_file(&text);
    parsed
        .unwrap_or_else(|e| panic!("{}: {e}", file.display()))
        .items
}

/// Whether one of these attributes is `name(argument)`.
fn has(attributes: &[Attribute], name: &str, argument: &str) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident(name) && list.is_ok_and(|l| l.tokens.to_string() == argument)
    })
}

pub fn is_hidden(attributes: &[Attribute]) -> bool {
    has(attributes, "doc", "hidden") || has(attributes, "cfg", "test")
}

pub fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

impl Module {
    /// A crate of one file.
    pub fn of_text(text: &str) -> Module {
        let items = syn::parse_file(text).expect("Rust").items;
        Module::new(items, Path::new("nowhere"), true, false)
    }

    /// `folder` has the files of the modules within.
    fn new(all: Vec<Item>, folder: &Path, is_public: bool, is_hidden: bool) -> Module {
        let (mut items, mut children) = (Vec::new(), BTreeMap::new());
        for item in all {
            let Item::Mod(module) = item else {
                items.push(item);
                continue;
            };
            if has(&module.attrs, "cfg", "test") {
                continue;
            }
            let name = module.ident.to_string();
            let within = folder.join(&name);
            let of_module = match module.content {
                Some((_, items)) => items,
                None => {
                    let file = folder.join(format!("{name}.rs"));
                    parse(&if file.exists() {
                        file
                    } else {
                        within.join("mod.rs")
                    })
                }
            };
            let is_hidden = self::is_hidden(&module.attrs);
            let is_public = self::is_public(&module.vis);
            let child = Module::new(of_module, &within, is_public, is_hidden);
            children.insert(name, child);
        }
        Module {
            imports: imports_of(&items),
            items,
            children,
            is_public,
            is_hidden,
        }
    }

    pub fn at(&self, place: &[String]) -> &Module {
        place
            .iter()
            .fold(self, |module, name| &module.children[name])
    }

    /// Calls `visit` for this module, at this place, and all within that are not hidden.
    pub fn for_each<'a>(&'a self, place: &Place, visit: &mut impl FnMut(&Place, &'a Module)) {
        visit(place, self);
        for (name, child) in self.children.iter().filter(|(_, child)| !child.is_hidden) {
            child.for_each(&within(place, name), visit);
        }
    }

    /// The item of this name, if one defines it here.
    pub fn item(&self, name: &str) -> Option<&Item> {
        self.items
            .iter()
            .find(|item| name_of(item).as_deref() == Some(name))
    }

    /// Where a path leads that stands in the module at `place`; this is the root.
    pub fn resolve(&self, place: &Place, path: &[String]) -> Target {
        let [first, rest @ ..] = path else {
            return Target::Module(place.clone());
        };
        match first.as_str() {
            "crate" => return self.resolve(&Vec::new(), rest),
            "self" => return self.resolve(place, rest),
            "super" => return self.resolve(&place[..place.len() - 1].to_vec(), rest),
            _ => {}
        }
        let module = self.at(place);
        if module.children.contains_key(first) {
            return self.resolve(&within(place, first), rest);
        }
        if module.item(first).is_some() {
            return Target::Item(place.clone(), first.clone());
        }
        for import in &module.imports {
            let is_loop = import.path.first() == Some(first);
            if import.name == *first && !is_loop {
                let path = [&import.path[..], rest].concat();
                return self.resolve(place, &path);
            }
            if import.name == "*"
                && let Target::Module(of) = self.resolve(place, &import.path)
                && of != *place
                && let found @ Target::Item(..) = self.resolve(&of, path)
            {
                return found;
            }
        }
        match module.items.iter().any(|item| is_macro_for(item, first)) {
            true => Target::Item(place.clone(), first.clone()),
            false => Target::Foreign,
        }
    }
}

/// Whether a macro of the crate that stands in the same module defines a type or a constant of this
/// name.
fn is_macro_for(item: &Item, name: &str) -> bool {
    let Item::Macro(item) = item else {
        return false;
    };
    let code = item.mac.tokens.to_string();
    let is_defined = |kind: &str| {
        let start = format!("{kind} {name}");
        let mut after = code.split(&start).skip(1);
        after.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    item.ident.is_some() && ["struct", "enum", "const"].into_iter().any(is_defined)
}

fn imports_of(items: &[Item]) -> Vec<Import> {
    let mut imports = Vec::new();
    for item in items {
        if let Item::Use(item) = item
            && !is_hidden(&item.attrs)
        {
            let is_public = is_public(&item.vis);
            follow(&item.tree, Vec::new(), &mut |path, name| {
                imports.push(Import {
                    name,
                    path,
                    is_public,
                })
            });
        }
    }
    imports
}

/// The place of a module in another.
pub fn within(place: &Place, name: &str) -> Place {
    let mut inner = place.clone();
    inner.push(name.to_owned());
    inner
}

fn follow(tree: &UseTree, mut path: Vec<String>, found: &mut impl FnMut(Vec<String>, String)) {
    let mut leaf = |ident: &syn::Ident, name: &syn::Ident, mut path: Vec<String>| {
        if ident != "self" {
            path.push(ident.to_string());
        }
        let own = path.last().cloned().unwrap_or_default();
        found(
            path,
            if name == "self" {
                own
            } else {
                name.to_string()
            },
        );
    };
    match tree {
        UseTree::Path(at) => {
            path.push(at.ident.to_string());
            follow(&at.tree, path, found);
        }
        UseTree::Name(at) => leaf(&at.ident, &at.ident, path),
        UseTree::Rename(at) => leaf(&at.ident, &at.rename, path),
        UseTree::Glob(_) => found(path, "*".into()),
        UseTree::Group(group) => {
            for tree in &group.items {
                follow(tree, path.clone(), found);
            }
        }
    }
}

/// The name of an item that others can name.
pub fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
