{{/* Parts of the operator's pod that the test's pod has as well. */}}
{{- define "kvferry.image" -}}
{{- $image := (include "kvferry.values" . | fromYaml).image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Where the pod may run and by which secrets its image is pulled. */}}
{{- define "kvferry.placement" -}}
{{- $values := include "kvferry.values" . | fromYaml -}}
{{- range $field := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" -}}
{{- with index $values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvferry.arguments" -}}
{{- $values := include "kvferry.values" . | fromYaml -}}
{{- range $values.namespaces }}
- --namespace={{ . }}
{{- end }}
- --leader-elect
- --lease-namespace={{ .Release.Namespace }}
- --http-port=8080
- --workers={{ int $values.operator.workers }}
- --resync-seconds={{ int $values.operator.resyncSeconds }}
- --log-format={{ $values.operator.logFormat }}
- --log-level={{ $values.operator.logLevel }}
- --pull-policy={{ $values.modelImages.pullPolicy }}
{{- range $name := list "engine" "runtime" "vllm" }}
{{- with index $values.modelImages $name }}
- --{{ $name }}-image={{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Each name once, as server-side apply wants it; what the user says wins. */}}
{{- define "kvferry.environment" -}}
{{- $more := (include "kvferry.values" . | fromYaml).extraEnv -}}
{{- $home := dict "name" "HOME" "value" "/tmp" -}}
{{- range $more -}}
{{- if eq .name "HOME" -}}{{- $home = dict -}}{{- end -}}
{{- end -}}
{{- with $home }}
{{- toYaml (list .) }}
{{- end }}
{{- with $more }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Spread constraints; one without a selector of its own counts the operator's pods. */}}
{{- define "kvferry.spread" -}}
{{- $ours := dict "labelSelector" (dict "matchLabels" (include "kvferry.selector" . | fromYaml)) -}}
{{- range (include "kvferry.values" . | fromYaml).topologySpreadConstraints }}
- {{ toYaml (merge (deepCopy .) $ours) | nindent 2 | trim }}
{{- end }}
{{- end -}}
