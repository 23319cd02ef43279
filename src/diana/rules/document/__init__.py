"""From the bytes of a rules document to a policy: no I/O. Every error has a line, a column and a path.

yaml_tree               YAML as a tree with positions; the files of a folder as one document
mapping_tree            the same tree from a mapping in code
readers                 strict readers of single fields; errors are collected
settings_fields         the fields of a document, its settings and rules
rule_fields             the fields of a rule
adjustment_fields       tiers, overrides, `allow`, `only`, `deny`, `charge_on`: read and compiled
filter_and_shed_fields  `filters` and `shed`
http_methods            `methods`
spelled_limits          advice for a limit such as `100/minute` in a field that takes a number
merged_fields           a rule's own fields over the defaults
compiler                from fields to rules
settings_compiler       from fields to settings
warnings                what is legal but suspicious, for `diana check`
denied_clients          a warning: clients on an `allow` list that `deny` denies first
invented_values         a warning: a limit for each value that a client can invent
difference              what another policy would change, in words
"""
