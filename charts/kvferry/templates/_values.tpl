{{/*
The values with what is absent or null replaced by its default, as YAML: old values may lack whole blocks
(`helm upgrade --reuse-values`), and a null must not bring a template down. Blocks in the form of Kubernetes are
taken as a whole, so that a single field of them can be unset with null.
*/}}
{{- define "kvferry.values" -}}
{{- $asInKubernetes := list "podSecurityContext" "securityContext" "resources" -}}
{{- $values := dict -}}
{{- range $name, $default := include "kvferry.defaults" . | fromYaml -}}
  {{- $given := index $.Values $name -}}
  {{- if kindIs "invalid" $given -}}
    {{- $_ := set $values $name $default -}}
  {{- else if or (not (kindIs "map" $default)) (has $name $asInKubernetes) -}}
    {{- $_ := set $values $name $given -}}
  {{- else -}}
    {{- range $key, $value := $given -}}
      {{- if not (kindIs "invalid" $value) -}}
        {{- $_ := set $default $key $value -}}
      {{- end -}}
    {{- end -}}
    {{- $_ := set $values $name $default -}}
  {{- end -}}
{{- end -}}
{{- toYaml $values -}}
{{- end -}}
