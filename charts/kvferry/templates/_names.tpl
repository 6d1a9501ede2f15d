{{/*
Names and labels. A name is cut at 40 characters, which leaves room for every suffix and for what Kubernetes adds to
the names of pods.
*/}}
{{- define "kvferry.name" -}}
{{- $values := include "kvferry.values" . | fromYaml -}}
{{- $values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvferry.fullname" -}}
{{- $values := include "kvferry.values" . | fromYaml -}}
{{- $name := include "kvferry.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $values.fullnameOverride | default $full | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvferry.operator" -}}
{{ include "kvferry.fullname" . }}-operator
{{- end -}}

{{- define "kvferry.serviceAccount" -}}
{{- $account := (include "kvferry.values" . | fromYaml).serviceAccount -}}
{{- $account.name | default (ternary (include "kvferry.operator" .) "default" $account.create) -}}
{{- end -}}

{{/* What picks the operator's pods; it never changes, since a Deployment's selector cannot. */}}
{{- define "kvferry.selector" -}}
app.kubernetes.io/name: {{ include "kvferry.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* Labels of an object. Takes (list CONTEXT COMPONENT [MORE LABELS]); ours win. */}}
{{- define "kvferry.labels" -}}
{{- $context := index . 0 -}}
{{- $ours := dict
    "app.kubernetes.io/name" (include "kvferry.name" $context)
    "app.kubernetes.io/instance" $context.Release.Name
    "app.kubernetes.io/component" (index . 1)
    "app.kubernetes.io/part-of" "kvferry"
    "app.kubernetes.io/version" $context.Chart.AppVersion
    "app.kubernetes.io/managed-by" $context.Release.Service
    "helm.sh/chart" (printf "%s-%s" $context.Chart.Name $context.Chart.Version | replace "+" "_") -}}
{{- $common := (include "kvferry.values" $context | fromYaml).commonLabels -}}
{{- $more := ternary (last .) dict (gt (len .) 2) -}}
{{- toYaml (merge $ours (deepCopy $more) (deepCopy $common)) -}}
{{- end -}}

{{/* Labels of the operator's pods. No versions among them: an upgrade that changes nothing else restarts nothing. */}}
{{- define "kvferry.podLabels" -}}
{{- $values := include "kvferry.values" . | fromYaml -}}
{{- toYaml (merge (include "kvferry.selector" . | fromYaml) $values.podLabels $values.commonLabels) -}}
{{- end -}}
