"""Samples of the formats of localization files except PO, with features from the documentation of each format."""

JSON = r"""{
  "title": "Hello \u00e9 world",
  "path": "a\/b and \"c\" \\ d\n\te",
  "nested": {"list": ["One <b>dog</b>", 5, true, null, -1.5e3, "menu.file_open", "", "#ff0000"]},
  "files": "You have {n, plural, =0 {no file} one {# file} other {# files}} in {folder}",
  "item_one": "one item",
  "item_other": "{{count}} items",
  "place_ordinal_one": "{{count}}st place",
  "place_ordinal_two": "{{count}}nd place",
  "place_ordinal_few": "{{count}}rd place",
  "place_ordinal_other": "{{count}}th place",
  "welcome": "Hi {name}, $t(title) at https://example.org/a",
  "quit": "&Quit", "exit": "E_xit",
  "note": {"message": "A dog", "description": "For translators"}
}
"""

ARB = r"""{
  "@@locale": "en",
  "@@x-note": "of the file",
  "title": "Hello {name}",
  "@title": {
    "description": "A greeting", "placeholders": {"name": {"type": "String", "example": "Ann"}}
  },
  "dogs": "{count, plural, =0{no dogs} =1{one dog} other{{count} dogs}} of {g, select, male{his} other{theirs}}"
}
"""

YAML = r"""# A comment
en:
  hello: "Hello %{name}"   # trailing
  single: 'it''s me'
  plain: see the dog, now
  true: no
  "quoted key": yes it is
  number: 5
  when: 2024-01-01
  literal: |
    First line
    second line

  folded: >-
    some folded
    text here
  long: several words
    over two lines
  formats:
    default: "%Y-%m-%d"
    order: [ :year, :month ]
  flow: {a: the dog, b: [one, two, 3]}
  anchor: &a the anchor
  alias: *a
  tagged: !ruby/symbol dog
  escaped: "a \u00e9 b\
    c"
  empty:
  files:
    one: one file
    other: "%{count} files"
"""

ANDROID = r"""<?xml version="1.0" encoding="utf-8"?>
<!-- A comment -->
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2" xmlns:tools="http://schemas.android.com/tools">
    <string name="app" translatable="false">My App</string>
    <string name="a">Don\'t <b>stop</b>\nnow %1$s &amp; <xliff:g id="x" example="5">%2$d</xliff:g> \u00e9</string>
    <string name="link">See <a href="https://example.org">the page</a></string>
    <string name="quoted">"  the cat's  "</string>
    <string name="html"><![CDATA[A <b>big</b> dog]]></string>
    <string name="reference">@string/app</string>
    <string name="empty"/>
    <color name="red">#ff0000</color>
    <plurals name="dogs">
        <item quantity="one">one dog</item>
        <item quantity="other">%d dogs</item>
    </plurals>
    <string-array name="colors">
        <item>red</item>
        <item>dark blue</item>
    </string-array>
    <integer-array name="numbers"><item>5</item></integer-array>
</resources>
"""

XLIFF = r"""<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file source-language="en" target-language="de" datatype="plaintext" original="a">
    <header><note>of the file</note></header>
    <body>
      <trans-unit id="1">
        <source>Hello <g id="1">big</g> world<x id="2"/>. It &amp; <bpt id="3">&lt;b&gt;</bpt>bold<ept id="3">&lt;/b&gt;</ept></source>
        <note>n</note>
      </trans-unit>
      <trans-unit id="2" translate="no"><source>no</source></trans-unit>
      <group translate="no"><trans-unit id="2a"><source>no</source></trans-unit></group>
      <trans-unit id="3"><source>done</source><target state="final">fertig</target></trans-unit>
      <trans-unit id="4" approved="yes"><source>approved</source><target/></trans-unit>
      <trans-unit id="5">
        <source>Two <mrk mtype="protected">Kept</mrk> <ph id="4">{0}</ph> dogs</source>
        <target state="needs-translation">Two dogs</target>
        <alt-trans><source>other</source><target>anderes</target></alt-trans>
      </trans-unit>
      <trans-unit id="6"><source>See <x id="START_LINK"/>the page<x id="CLOSE_LINK"/></source></trans-unit>
      <trans-unit id="7"><source>{N, plural, =1 {a dog} other {<x id="I" equiv-text="{{n}}"/> dogs}}</source></trans-unit>
      <trans-unit id="8" xml:space="preserve"><source>one
two</source></trans-unit>
      <trans-unit id="9"><source>A. B c.</source><seg-source><mrk mtype="seg" mid="1">A dog.</mrk> <mrk mtype="seg" mid="2">B <it id="5" pos="open">x</it>cat.</mrk></seg-source></trans-unit>
    </body>
  </file>
</xliff>
"""  # noqa: E501

XLIFF_2 = r"""<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.1" srcLang="en">
  <file id="f">
    <unit id="u">
      <notes><note>n</note></notes>
      <originalData><data id="d">&lt;b&gt;</data></originalData>
      <segment id="s1">
        <source>Hi <pc id="1">there</pc> <ph id="2"/><sc id="3"/>my<ec startRef="3"/> dog<cp hex="0001"/></source>
      </segment>
      <ignorable><source> </source></ignorable>
      <segment state="final"><source>a</source><target>b</target></segment>
    </unit>
    <unit id="v" translate="no"><segment><source>no</source></segment></unit>
  </file>
</xliff>
"""

STRINGS = r"""/* A comment with "quotes" */
"title" = "Hello \"big\" world";
// Another
key.bare = "here it\U2019s %@";
"two lines" = "one\ntwo %1$@ \\ three";
"empty" = "";
Redo = Again; "key alone";
"over
lines" = "first
second";
"""

STRINGSDICT = r"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
    <key>dogs in place</key>
    <dict>
        <key>NSStringLocalizedFormatKey</key>
        <string>%#@dogs@ here</string>
        <key>dogs</key>
        <dict>
            <key>NSStringFormatSpecTypeKey</key>
            <string>NSStringPluralRuleType</string>
            <key>NSStringFormatValueTypeKey</key>
            <string>d</string>
            <key>one</key>
            <string>one &amp; only dog</string>
            <key>other</key>
            <string>%d dogs</string>
        </dict>
    </dict>
    <key>wide</key>
    <dict>
        <key>NSStringVariableWidthRuleType</key>
        <dict>
            <key>20</key>
            <string>short text</string>
        </dict>
    </dict>
</dict>
</plist>
"""

PROPERTIES = r"""# A comment = no message
! another
title = Hello world
it's: {0} dogs aren''t here
colon:value of it
spaced\ key\:x   the value
unicode=caf\u00e9 is open
lines=first line \
      goes on\n\
      second line
empty=
name.of.key=my.class.Name
quit=&Quit
"""

RESX = r"""<?xml version="1.0" encoding="utf-8"?>
<root>
  <xsd:schema id="root" xmlns:xsd="http://www.w3.org/2001/XMLSchema"><xsd:element name="data"/></xsd:schema>
  <resheader name="resmimetype"><value>text/microsoft-resx</value></resheader>
  <data name="Title" xml:space="preserve">
    <value>Hello &lt;b&gt;big&lt;/b&gt; {0:N2} world
second line</value>
    <comment>For translators</comment>
  </data>
  <data name="Locked"><value>Fabrikam</value><comment>{Locked}</comment></data>
  <data name="button.Size" type="System.Drawing.Size, System.Drawing"><value>75, 23</value></data>
  <data name="&gt;&gt;button.Name" xml:space="preserve"><value>button</value></data>
  <data name="empty"><value></value></data>
  <data name="none"/>
</root>
"""

QT = r"""<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" sourcelanguage="en">
<context>
    <name>Window</name>
    <message>
        <location filename="a.cpp" line="5"/>
        <source>&amp;Open %1 <byte value="x9"/>now</source>
        <comment>menu</comment>
        <translation type="unfinished"></translation>
    </message>
    <message numerus="yes">
        <source>%n dog(s)</source>
        <translation type="unfinished">
            <numerusform></numerusform>
            <numerusform></numerusform>
        </translation>
    </message>
    <message>
        <source>done</source>
        <translation>fertig</translation>
    </message>
    <message>
        <source>draft</source>
        <translation type="unfinished">Entwurf</translation>
    </message>
    <message>
        <source>gone</source>
        <translation type="vanished"></translation>
    </message>
    <message>
        <source>without one</source>
        <translatorcomment>n</translatorcomment>
    </message>
</context>
</TS>
"""

LARAVEL = r"""<?php

// A comment
return [
    'title' => 'Hello :name and it\'s open',
    "double" => "a \"big\" dog\n", # more
    'nested' => array(
        'key' => ['first text', "second\$text",],
        'number' => 5, 'on' => true,
    ),
    'dogs' => '{0} No dogs|[1,19] Some dogs|[20,*] Many dogs', /* end */
];
"""

SAMPLES = {
    "json": JSON,
    "arb": ARB,
    "yaml": YAML,
    "android": ANDROID,
    "xliff": XLIFF,
    "xliff-2": XLIFF_2,
    "strings": STRINGS,
    "stringsdict": STRINGSDICT,
    "properties": PROPERTIES,
    "resx": RESX,
    "qt": QT,
    "laravel": LARAVEL,
}
