"""The forms of placeholders, with links to the documentation that defines them.

Forms in DELIMITED are recognized in all text. Forms in PLAIN are recognized unless the message has flags, such as
gettext's c-format, which enable other forms. Forms in FLAGGED resemble prose, so they need a flag. A flag such as
no-c-format disables forms. Forms are listed in order of precedence. Matching takes time linear in the length of the
text, because every pattern is possessive, bounded, or cannot extend past the next occurrence of its first character.
"""

from typing import NamedTuple

GETTEXT = "https://www.gnu.org/software/gettext/manual/html_node/"  # chapter 15.3, "Format Strings"


class Form(NamedTuple):
    pattern: str  # without capturing groups, except a group that a backreference needs
    source: str  # the addresses of the documentation
    ordered: bool = False  # whether placeholders must keep their order, because each takes the next argument


_FORMAT_STRINGS = "https://docs.python.org/3/library/string.html#formatstrings"
_NAME = r"[^\W\d]\w*+"
_WIDTH = r"(?:\*(?:\d++\$)?+|\d++)?+(?:\.(?:\*(?:\d++\$)?+|\d*+))?+"  # width and precision
_SIZE = r"(?:hh?+|ll?+|[Lqjzt]|I32|I64|wf?+\d++)?+"


def _directive(conversions: str, flags: str = "-+#0", size: str = "") -> str:
    """Return the pattern of a printf directive that takes the next argument."""
    return rf"%[{flags}]*+{_WIDTH}{size}(?:{conversions})"


def _braces(depth: int) -> str:
    """Return a pattern for text whose braces are balanced and nested at most `depth` levels deep."""
    return rf"(?:[^{{}}]++|\{{{_braces(depth - 1)}\}})*+" if depth else "[^{}]*+"


def _between(opening: str, closing: str, most: int = 500) -> str:
    return rf"{opening}(?:(?!{opening}|{closing}).){{0,{most}}}+{closing}"


_URL = (
    r"(?:[^\s<>\"'.,;:!?)\]{}]|\{\{[^\s{}<>\"]{0,99}+\}\}|\{[^\s{}<>\"]{0,99}+\}"
    r"|['.,;:!?)\]{}]++(?=[^\s<>\"'.,;:!?)\]{}]))++"
)
_ICU_TYPE = "(?:number|date|time|spellout|ordinal|duration|list|choice|plural|select(?:ordinal)?)"
_C = "[diouxXeEfFgGaAcCsSpm]|n(?!\\w)"

DELIMITED = {
    "url": Form(rf"(?:https?|ftp)://{_URL}|www\.{_URL}", "https://www.rfc-editor.org/rfc/rfc3986"),
    "mail": Form(
        r"(?<![\w.+-])[\w.+-]{1,64}+@[\w-]++(?:\.[\w-]++)++", "https://www.rfc-editor.org/rfc/rfc5321#section-4.5.3.1"
    ),
    "tool": Form(
        r"\[X\d++X\]|<(?P<element>\w[\w:.-]*+)(?:\s[^<>]*+)?+></(?P=element)>|<\w[\w:.-]*+(?:/|\s[^<>]*+(?<=/))>",
        "https://docs.weblate.org/en/latest/admin/machine.html; https://react.i18next.com/latest/trans-component; "
        "https://lingui.dev/tutorials/react; https://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html (x, bx, ex)",
    ),
    "footnote": Form(r"\[\^[^\[\]\s]++\]:?", "https://docs.github.com/en/get-started/writing-on-github (footnotes)"),
    "maketext": Form(
        r"\[_(?:\d++|\*)\]|\[(?:quant|numf|numerate|sprintf|[*#]),[^\[\]]*+\]",
        "https://metacpan.org/pod/Locale::Maketext#BRACKET-NOTATION",
    ),
    "statement": Form(
        "|".join([_between(r"\{%", r"%\}"), _between("<%", "%>"), _between(r"\{#", r"#\}"), _between(r"<\?", r"\?>")]),
        "https://jinja.palletsprojects.com/en/stable/templates/; https://docs.ruby-lang.org/en/master/ERB.html; "
        "https://www.php.net/manual/en/language.basic-syntax.phptags.php",
        ordered=True,
    ),
    "mustache": Form(
        r"\{\{\{(?:(?!\{\{|\}\}).){0,500}+\}\}\}|\{\{(?:(?!\{\{|\}\}).){0,500}+\}\}",
        "https://mustache.github.io/mustache.5.html; https://angular.dev/guide/templates/binding; "
        "https://www.i18next.com/translation-function/interpolation; Automattic's components: "
        "https://github.com/Automattic/interpolate-components",
    ),
    "nesting": Form(r"\$t\([^()]*+(?:\([^()]*+\)[^()]*+)*+\)", "https://www.i18next.com/translation-function/nesting"),
    "template": Form(
        r"[%$#]\{[^{}]{0,500}+\}|\$\([\w.^]++\)",
        "https://developer.mozilla.org/en-US/docs/Web/JavaScript/Reference/Template_literals; "
        "https://docs.ruby-lang.org/en/master/format_specifications_rdoc.html; "
        "https://www.gnu.org/software/make/manual/html_node/Reference.html",
    ),
    "webextension": Form(
        r"\$[A-Za-z_@][\w@]*+\$(?!\w)|__(?:[A-Za-z0-9@]++(?:_(?!_))?+)++__",
        "https://developer.chrome.com/docs/extensions/reference/api/i18n ($NAME$, __MSG_name__); "
        "https://www.i18next.com/misc/migration-guide (__name__ of version 1)",
    ),
    "icu": Form(
        rf"\{{\s*+\w++\s*+,\s*+{_ICU_TYPE}\s*+(?:,{_braces(6)})?+\}}",
        "https://unicode-org.github.io/icu/userguide/format_parse/messages/",
    ),
    "net": Form(
        r"\{\d++,\s*+-?+\d++(?::[^{}]*+)?+\}",
        "https://learn.microsoft.com/en-us/dotnet/standard/base-types/composite-formatting",
    ),
    "auto_brace": Form(
        r"\{(?:[!:](?!\s\w)(?:[^{}]|\{\w*+\})*+)?+\}",
        "https://docs.python.org/3/library/string.html#formatstrings",
        ordered=True,
    ),
    "brace": Form(
        r"\{[\w.\[\]$-]++(?:[!:](?!\s\w)(?:[^{}]|\{\w*+\})*+)?+\}|\{'[^'{}]*+'\}"
        r"|\{ *+(?:[$-][\w.-]++|[A-Z]++\([^(){}]*+\)) *+\}",
        f"{_FORMAT_STRINGS}; "
        "https://vue-i18n.intlify.dev/guide/essentials/syntax; https://projectfluent.org/fluent/guide/variables.html; "
        "https://doc.rust-lang.org/std/fmt/; https://en.cppreference.com/w/cpp/utility/format/spec",
    ),
}

PLAIN = {
    "percent_name": Form(
        rf"%%{_NAME}%%|%(?<!\d%)(?!(?:hh?|ll?|[Lqjz])?[diouxXeEfFgGaAcCsSpn@]%)[^\W\d][\w.-]*+%",
        "https://symfony.com/doc/current/translation.html#message-placeholders (%name%); "
        "https://yoast.com/help/list-available-snippet-variables-yoast-seo/ (%%name%%)",
    ),
    "percent": Form("%%", "https://pubs.opengroup.org/onlinepubs/9799919799/functions/printf.html"),
    "strings_dictionary": Form(
        r"%(?:\d++\$)?+#@\w++@",
        "https://developer.apple.com/documentation/xcode/localizing-strings-that-contain-plurals",
    ),
    "ruby_named": Form(
        rf"%[-+#0]*+{_WIDTH}<{_NAME}>[-+#0]*+{_WIDTH}[diuoxXbBfgGeEaAcsp]",
        "https://docs.ruby-lang.org/en/master/format_specifications_rdoc.html",
    ),
    "integer_macro": Form(rf"%[-+#0']*+{_WIDTH}<PRI[A-Za-z0-9]++>", f"{GETTEXT}c_002dformat.html", ordered=True),
    "indexed": Form(
        rf"%\d++\$(?:[-+#0,(]|'.)*+{_WIDTH}(?:{_SIZE}[diouxXeEfFgGaAcCsSpn@bBhHvqDUO]|[tT][A-Za-z])",
        "https://pubs.opengroup.org/onlinepubs/9799919799/functions/printf.html; "
        "https://developer.android.com/guide/topics/resources/string-resource#FormattingAndStyling; "
        "https://developer.apple.com/library/archive/documentation/Cocoa/Conceptual/Strings/Articles/formatSpecifiers.html",
    ),
    "python_named": Form(
        rf"%\([^()\s]{{1,99}}+\)[-+#0]*+{_WIDTH}[hlL]?+[diouxXeEfFgGcrsa]",
        "https://docs.python.org/3/library/stdtypes.html#printf-style-string-formatting; "
        "https://docs.djangoproject.com/en/stable/topics/i18n/translation/",
    ),
    "pascal_indexed": Form(
        r"%(?<!\d%)\d++:-?+\d*+(?:\.\d*+)?+[duxefgnmspDUXEFGNMSP]",
        "https://www.freepascal.org/docs-html/rtl/sysutils/format.html",
    ),
    "boost": Form(
        r"%(?<!\d%)\d++%|%\|[^|\s]{1,20}+\|",
        "https://www.boost.org/doc/libs/release/libs/format/doc/format.html#syntax",
    ),
    "percent_word": Form(  # at least four characters; ordered, because "%dpage" may be the directive %d and text
        r"%(?<![\w%]%)(?!n[A-Z])[A-Za-z_][A-Za-z0-9_]{3,}+(?:-\w++)*+",
        "https://api.drupal.org/api/drupal/core%21includes%21bootstrap.inc/function/t",
        ordered=True,
    ),
    "printf": Form(  # after a digit, only %d, %s and %@ at the end of a word: "50%-off" contains no directive
        rf"%(?<!\d%)[-+#0']*+{_WIDTH}{_SIZE}(?:[diouxXeEfFgGaAcCrsSp@]|n(?![a-z_])|[bBvqTUjDO](?!\w))|%(?<=\d%)[ds@](?!\w)",
        "https://pubs.opengroup.org/onlinepubs/9799919799/functions/printf.html; "
        "https://developer.apple.com/library/archive/documentation/Cocoa/Conceptual/Strings/Articles/formatSpecifiers.html",
        ordered=True,
    ),
    "qt": Form(
        r"%(?<!\d%)L?+\d{1,2}+(?![\w$])|%(?<!\w%)L?+\d{1,2}+(?![\d$])|%(?<!\d%)Ln(?!\w)",
        "https://doc.qt.io/qt-6/qstring.html#arg; https://doc.qt.io/qt-6/i18n-source-translation.html",
    ),
    "vue_link": Form(
        r"@(?:\.\w++)?+:(?:\([\w.]++\)|\w++(?:\.\w++)*+)", "https://vue-i18n.intlify.dev/guide/essentials/syntax"
    ),
    "at_name": Form(
        rf"@(?<![\w@]@){_NAME}(?:-\w++)*+",
        "https://api.drupal.org/api/drupal/core%21includes%21bootstrap.inc/function/t",
    ),
    "bang_name": Form(
        r"!(?<![\w!]!)[a-z_]\w++(?:-\w++)*+",
        "https://api.drupal.org/api/drupal/includes%21bootstrap.inc/function/format_string/7.x",
    ),
    "emoji": Form(
        r":(?<![\w:]:)[A-Za-z][\w+-]*+:(?![\w:])", "https://docs.github.com/en/get-started/writing-on-github (emojis)"
    ),
    "colon_name": Form(
        rf":(?<![\w:)\]]:){_NAME}", "https://laravel.com/docs/localization#replacing-parameters-in-translation-strings"
    ),
    "dollar_name": Form(
        rf"\$(?<![\w$]\$){_NAME}",
        "https://docs.python.org/3/library/string.html#template-strings; "
        "https://www.gnu.org/software/gettext/manual/html_node/envsubst-Invocation.html",
    ),
}

_SPACED = "spaced"
FLAGGED = {
    _SPACED: Form(  # directives with the space flag, which resemble prose such as "100% fine"
        rf"%(?<![\w%]%) [-+#0]*+\d*+(?:\.\d++)?+{_SIZE}[diouxXeEfFgG](?![^\W\d_])",
        "https://pubs.opengroup.org/onlinepubs/9799919799/functions/printf.html",
        ordered=True,
    ),
    "icu_quoted": Form(
        r"(?<!')'[{}#|][^']*+'", "https://unicode-org.github.io/icu/userguide/format_parse/messages/#quotingescaping"
    ),
    "icu_number": Form(
        "#", "https://unicode-org.github.io/icu/userguide/format_parse/messages/#complex-argument-types"
    ),
    "spaced_brace": Form(r"\{\s*+\w++\s*+\}", "https://unicode-org.github.io/icu/userguide/format_parse/messages/"),
    "c": Form(_directive(_C, "-+#0'I", _SIZE), f"{GETTEXT}c_002dformat.html", ordered=True),
    "objc": Form(_directive(f"{_C}|[@DUO]", "-+#0'", _SIZE), f"{GETTEXT}objc_002dformat.html", ordered=True),
    "python": Form(
        _directive("[diouxXeEfFgGcrsa]", size="[hlL]?+") + r"|%\([^()]{1,99}+\)[-+#0]*+[\d.]*+[diouxXeEfFgGcrsa]",
        "https://docs.python.org/3/library/stdtypes.html#printf-style-string-formatting",
        ordered=True,
    ),
    "ruby": Form(
        _directive(rf"[diuoxXbBfgGeEaAcsp]|\{{{_NAME}\}}"),
        "https://docs.ruby-lang.org/en/master/format_specifications_rdoc.html",
        ordered=True,
    ),
    "php": Form(
        r"%(?:[-+0]|'.){0,9}+\d*+(?:\.\d*+)?+l?+[bcdeEfFgGhHosuxX]",
        "https://www.php.net/manual/en/function.sprintf.php",
        ordered=True,
    ),
    "perl": Form(
        _directive("[csdiuoxXeEfFgGbBDUOpaA_]|n(?!\\w)|vd", size="(?:hh?+|ll?+|[qLVzt])?+"),
        "https://perldoc.perl.org/functions/sprintf",
        ordered=True,
    ),
    "java_printf": Form(
        r"%<?+[-+#0,(]*+\d*+(?:\.\d++)?+(?:[bBhHsScCdoxXeEfgGaA]|[tT][A-Za-z]|n)",
        "https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Formatter.html",
        ordered=True,
    ),
    "javascript": Form(_directive("[bcdfijosuxXOo]", "-+#0I"), f"{GETTEXT}javascript_002dformat.html", ordered=True),
    "shell_printf": Form(
        _directive("[csdiuoxXeEfFgGaAbq]"),
        "https://pubs.opengroup.org/onlinepubs/9799919799/utilities/printf.html",
        ordered=True,
    ),
    "lua": Form(_directive("[sqdiouXxAaEefGgcp]"), "https://www.lua.org/manual/5.4/manual.html#6.4", ordered=True),
    "go": Form(
        r"%[-+#0]*+(?:(?:\[\d++\])?+\*|\d++)?+(?:\.(?:(?:\[\d++\])?+\*|\d*+))?+(?:\[\d++\])?+[vTtcUsqeEfFgGOdobxXpw]",
        "https://pkg.go.dev/fmt",
        ordered=True,
    ),
    "d": Form(
        r"%(?:\d++(?::\d*+)?+\$)?+[-+#0=]*+(?:\*|\d++)?+(?:\.(?:\*|\d*+))?+(?:,(?:\*|\d*+)\??+)?+[A-Za-z()|]",
        "https://dlang.org/library/std/format.html",
        ordered=True,
    ),
    "ocaml": Form(
        _directive("[lnL][diuxXo]|[diuxXosScCfFeEgGhHBat!,@]"),
        "https://ocaml.org/manual/5.3/api/Printf.html",
        ordered=True,
    ),
    "pascal": Form(
        r"%(?:[\d*]*+:)?+-?+[\d*]*+(?:\.[\d*]*+)?+[duxefgnmspDUXEFGNMSP]",
        "https://www.freepascal.org/docs-html/rtl/sysutils/format.html",
        ordered=True,
    ),
    "modula2": Form(
        r"%-?+0*+\d*+[scdux]", "https://gcc.gnu.org/onlinedocs/gm2/gm2-libs_002fFormatStrings.html", ordered=True
    ),
    "awk": Form(
        _directive("[diouxXeEfFgGaAcs]"),
        "https://www.gnu.org/software/gawk/manual/html_node/Control-Letters.html",
        ordered=True,
    ),
    "tcl": Form(
        _directive("[cdisouxXeEfgGbp]", size="(?:ll?+|[hLqjzt])?+"),
        "https://www.tcl-lang.org/man/tcl/TclCmd/format.htm",
        ordered=True,
    ),
    "lisp": Form(
        r"~(?:[-+\d,:@#vV]|'.){0,30}+[A-Za-z%~&?*^(){}\[\];|$_/!<>\n]",
        "https://www.gnu.org/software/guile/manual/html_node/Formatted-Output.html; "
        "https://www.lispworks.com/documentation/HyperSpec/Body/22_c.htm",
        ordered=True,
    ),
    "emacs": Form(
        _directive("[sSdioxXeEfgGc]"),
        "https://www.gnu.org/software/emacs/manual/html_node/elisp/Formatting-Strings.html",
        ordered=True,
    ),
    "gcc": Form(
        r"%[<>'}R{]|%(?:\d++\$)?+[q+#lwzt]*+(?:\.(?:\*(?:\d++\$)?+|\d++))?+[A-Za-z]",
        f"{GETTEXT}gcc_002dinternal_002dformat.html",
        ordered=True,
    ),
    "number": Form(r"%\d++", f"{GETTEXT}kde_002dformat.html; https://doc.qt.io/qt-6/qstring.html#arg"),
    "locale_number": Form(r"%L?+\d{1,2}+", "https://doc.qt.io/qt-6/qstring.html#arg"),
    "count": Form("%L?+n", "https://doc.qt.io/qt-6/i18n-source-translation.html#handle-plural-forms"),
    "boost_printf": Form(
        r"%[-+#0'_=hl]*+" + _WIDTH + r"[hlL]?+(?:[cCsSidouxXeEfgGpt]|n(?!\w)|T.)",
        "https://www.boost.org/doc/libs/release/libs/format/doc/format.html#syntax",
        ordered=True,
    ),
}
FORMS = DELIMITED | PLAIN | FLAGGED  # in order of precedence

_PRINTF = ("percent", "indexed", _SPACED)
_BRACES = ("auto_brace", "brace")
# Maps a general form to the special forms that it also matches. A flag that disables one of these special forms,
# such as no-qt-format, also disables the general form.
GENERAL = {"printf": {"percent"}, "qt": {"locale_number", "count", "number"}}
# The forms that each flag of a message enables. gettext documents its flags in the chapter "PO Files" of its manual,
# and Weblate documents its flags at https://docs.weblate.org/en/latest/user/checks.html
FLAGS: dict[str, tuple[str, ...]] = {
    "c-format": ("c", "integer_macro", *_PRINTF),
    "objc-format": ("objc", "strings_dictionary", *_PRINTF),
    "c++-format": _BRACES,
    "python-format": ("python", "python_named", "percent", _SPACED),
    "python-brace-format": _BRACES,
    "java-format": ("icu", "spaced_brace", *_BRACES),
    "java-printf-format": ("java_printf", *_PRINTF),
    "java-messageformat": ("icu", "spaced_brace", *_BRACES),
    "auto-java-messageformat": ("icu", "spaced_brace", *_BRACES),
    "icu-message-format": ("icu", "icu_quoted", "spaced_brace", *_BRACES),
    "icu-plural": ("icu_number",),  # a flag of nmt for text inside an ICU plural
    "csharp-format": ("net", *_BRACES),
    "c-sharp-format": ("net", *_BRACES),
    "javascript-format": ("javascript", *_PRINTF),
    "es-format": ("template",),
    "i18next-interpolation": ("mustache", "nesting"),
    "angularjs-format": ("mustache",),
    "automattic-components-format": ("mustache",),
    "vue-format": ("vue_link", "template", *_BRACES),
    "laravel-format": ("colon_name",),
    "percent-placeholders": ("percent_name",),
    "ruby-format": ("ruby", "ruby_named", "template", *_PRINTF),
    "php-format": ("php", *_PRINTF),
    "perl-format": ("perl", *_PRINTF),
    "perl-brace-format": _BRACES,
    "sh-format": ("dollar_name",),
    "sh-printf-format": ("shell_printf", *_PRINTF),
    "lua-format": ("lua", "percent", _SPACED),
    "go-format": ("go", "percent", _SPACED),
    "rust-format": ("spaced_brace", *_BRACES),
    "d-format": ("d", *_PRINTF),
    "ocaml-format": ("ocaml", *_PRINTF),
    "object-pascal-format": ("pascal_indexed", "pascal", "percent"),
    "modula2-format": ("modula2", "percent"),
    "smalltalk-format": ("number", "percent"),
    "ycp-format": ("number", "percent"),
    "qt-format": ("locale_number",),
    "qt-plural-format": ("count",),
    "kde-format": ("number",),
    "kde-kuit-format": ("number",),
    "boost-format": ("boost", "boost_printf", *_PRINTF),
    "awk-format": ("awk", *_PRINTF),
    "tcl-format": ("tcl", *_PRINTF),
    "scheme-format": ("lisp",),
    "lisp-format": ("lisp",),
    "elisp-format": ("emacs", *_PRINTF),
    "librep-format": ("emacs", *_PRINTF),
    "gcc-internal-format": ("gcc", "percent"),
    "gfc-internal-format": ("gcc", "percent"),
}
